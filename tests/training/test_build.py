"""The command of an application with its parameters, inferred from runs."""

from dataclasses import replace

from made_runs import make_run

from leadline.training.build import infer_command


def run(number, command, **parameters):
    made = make_run(number)
    return replace(made, job=replace(made.job, command=tuple(command.split())), parameters=parameters)


def test_words_that_vary_with_a_parameter_become_its_placeholder():
    runs = [run(n, f"python t.py --epochs {e} --lr=0.1 --width={w}", epochs=e, width=w)
            for n, (e, w) in enumerate([(1, 64), (2, 128), (30, 64)])]  # fmt: skip
    assert infer_command(runs) == ("python", "t.py", "--epochs", "{epochs}", "--lr=0.1", "--width={width}")


def test_a_constant_parameter_becomes_a_placeholder_too():
    runs = [run(n, f"solve --grid {g} --method cg", grid=g, method="cg") for n, g in enumerate((64, 128))]
    assert infer_command(runs) == ("solve", "--grid", "{grid}", "--method", "{method}")


def test_commands_that_no_parameter_explains_have_no_template():
    assert infer_command([]) == ()
    assert infer_command([run(1, "solve a", grid=1), run(2, "solve b", grid=2)]) == ()
    assert infer_command([run(1, "solve", grid=1), run(2, "solve fast", grid=2)]) == ()
    assert infer_command([run(1, "solve", grid=1), run(2, "solve", grid=2)]) == ()
