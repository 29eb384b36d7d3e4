import sys
import weakref

from leadline.graphs.torch.worker.frames import locals_of


class Thing:
    """Something a variable may hold."""


def test_a_variable_read_and_set_anew_lets_go_of_what_it_held():
    thing = Thing()
    gone = weakref.ref(thing)
    assert thing is locals_of(sys._getframe())["thing"]
    thing = None
    assert gone() is None


def test_the_variables_of_a_module_stay_where_they_are():
    names = {"sys": sys, "locals_of": locals_of}
    exec("answer = locals_of(sys._getframe())\nkept = 1", names)  # noqa: S102 - a frame of module kind is wanted
    assert names["kept"] == 1
    assert "sys" in names["answer"]
