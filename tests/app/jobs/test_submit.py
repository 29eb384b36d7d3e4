"""What is handed to the plane: places by their names, and terms that can be."""

from datetime import UTC, datetime, timedelta

import pytest

from leadline.app import settings
from leadline.app.composition import toolbox
from leadline.app.jobs.job_request import JobRequest
from leadline.app.jobs.journal import JobSubmission, submit_jobs
from leadline.app.jobs.submit import PlaneOptions, build_policy, check_reachable, parse_places, prepare_submission
from leadline.core.errors import InvalidInput, SchedulerUnreachable, UnknownName
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import DependencyKind, Place, Policy

LOCAL = (Place("local"),)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    toolbox.cache_clear()
    yield
    toolbox.cache_clear()


def reach(text):
    settings.data_dir().mkdir(exist_ok=True)
    (settings.data_dir() / "reach.toml").write_text(text)


def test_places_have_the_names_of_the_catalog_or_of_the_users_own_file():
    reach('[systems.MyLab]\nhost = "lab"\nfolder = "/scratch/me"\nscheduler = "slurm"\n')
    catalog = toolbox().catalog
    assert (Place("Pitzer", "gpu"), Place("slurm", "a"), Place("local"), Place("MyLab", "b")) == (
        parse_places(["pitzer:gpu", "Slurm:a", "LOCAL", "mylab:b"], catalog)
    )


@pytest.mark.parametrize(
    ("place", "says"),
    [("Pizter:gpu", "did you mean 'Pitzer'"), ("slrum", "did you mean 'slurm'"), ("Pitzer:gpuu", "did you mean 'gpu'")],
)
def test_a_misspelt_place_is_named_with_near_ones(place, says):
    with pytest.raises(UnknownName, match=says):
        parse_places([place], toolbox().catalog)


@pytest.mark.parametrize(
    ("places", "says"),
    [(["local", "local"], "twice"), (["local:gpu"], "no partitions"), (["Pitzer"], "has several partitions")],
)
def test_a_place_that_cannot_be_is_refused(places, says):
    with pytest.raises(InvalidInput, match=says):
        parse_places(places, toolbox().catalog)


def test_an_unreachable_target_is_refused_with_the_fix(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    catalog = toolbox().catalog
    with pytest.raises(SchedulerUnreachable, match=r"no sbatch, .*reach\.toml.*--dry-run prints the script"):
        check_reachable([Place("Pitzer", "gpu")], catalog)
    reach('[systems.Pitzer]\nhost = "pitzer.osc.edu"\nfolder = "/fs/scratch/me"\n')
    check_reachable([Place("Pitzer", "gpu"), Place("local")], catalog)


def test_terms_become_the_policy_in_seconds_and_moments():
    terms = PlaneOptions(attempts=2, node_hours=1.5, cost=3.0, resumes=True, checkpoint_signal="sigusr1",
                  checkpoint_before="5m", deadline="6h", risk=0.1, resizes=False, measured=False)  # fmt: skip
    policy = build_policy(LOCAL, terms)
    assert (
        policy.attempts, policy.node_s, policy.cost, policy.resumes, policy.checkpoint_signal, policy.checkpoint_s,
    ) == (2, 5400.0, 3.0, True, "USR1", 300.0)  # fmt: skip
    assert (policy.risk, policy.resizes, policy.measured) == (0.1, False, False)
    left = datetime.fromisoformat(policy.deadline_at) - datetime.now(UTC)
    assert timedelta(hours=5.9) < left < timedelta(hours=6.1)
    moment = build_policy(LOCAL, PlaneOptions(deadline="2100-01-01T08:00+02:00")).deadline_at
    assert moment.startswith("2100-01-01T06:00:00")


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        (PlaneOptions(copies=2), "--copies is 2, but there is one target"),
        (PlaneOptions(copies=0), "--copies is 0, but it must be at least 1"),
        (
            PlaneOptions(checkpoint_folder="kept"),
            "--checkpoint-folder needs --resumes",
        ),
        (PlaneOptions(checkpoint_folder="../kept", resumes=True), "'../kept' is not a folder below the job's own"),
        (PlaneOptions(attempts=0), "--attempts is 0"),
        (PlaneOptions(cost=float("nan")), "--most-cost is nan"),
        (PlaneOptions(risk=1.0), "must be between 0 and 1"),
        (PlaneOptions(checkpoint_signal="KILL"), "not a signal that a command can handle"),
        (PlaneOptions(checkpoint_signal="FIVE"), "not a signal that a command can handle"),
        (PlaneOptions(deadline="soon"), "not a duration or a time"),
        (PlaneOptions(deadline="2026-13-45"), "not a time"),
        (PlaneOptions(deadline="2020-01-01"), "is in the past"),
        (PlaneOptions(deadline="99999999999d"), "not a duration or a time"),
    ],
)
def test_terms_that_cannot_be_are_refused_by_name(terms, says):
    with pytest.raises(InvalidInput, match=says):
        build_policy(LOCAL, terms)


def test_a_submission_has_the_current_folder_but_its_scripts_do_not(tmp_path):
    terms = PlaneOptions(array="0-9:3", after_any=("ab12",))
    prepared = prepare_submission(["./job"], ["slurm:batch", "local"], JobRequest(cores=2), terms, toolbox())
    submission = prepared.submission
    assert (submission.indices, submission.after, submission.after_kind) == (
        (0, 3, 6, 9),
        ("ab12",),
        DependencyKind.ANY,
    )
    assert (str(tmp_path), "slurm", "batch") == (
        submission.spec.workdir,
        submission.spec.system,
        submission.spec.partition,
    )
    ((place, _, script),) = prepared.scripts
    assert str(place) == "slurm:batch"
    assert "cd --" not in script


def test_a_site_that_would_refuse_the_job_stops_the_submission():
    with pytest.raises(InvalidInput, match="are not available in partition"):
        prepare_submission(
            ["./job"],
            ["Pitzer:gpu"],
            JobRequest(cores=5000, gpus=1, memory_bytes=1, walltime_s=60.0),
            PlaneOptions(),
            toolbox(),
        )
    with pytest.raises(InvalidInput, match="exclude each other"):
        prepare_submission(["./job"], ["local"], JobRequest(), PlaneOptions(after=("a",), after_any=("b",)), toolbox())


def test_a_system_over_ssh_is_left_its_own_folder():
    reach('[systems.MyLab]\nhost = "lab"\nfolder = "/scratch/me"\nscheduler = "slurm"\n')
    prepared = prepare_submission(["./job"], ["MyLab:b"], JobRequest(), PlaneOptions(), toolbox())
    assert prepared.submission.spec.workdir is None
    assert "#SBATCH --partition=b" in prepared.scripts[0][2]


def test_replicas_need_the_measuring_wrapper():
    places = (Place("local"), Place("slurm"))
    with pytest.raises(InvalidInput, match="--copies needs the measuring wrapper"):
        build_policy(places, PlaneOptions(copies=2, measured=False))
    wanted = JobSubmission(JobSpec("x", ("true",), ResourceSpec()), Policy(places, copies=2, measured=False))
    with pytest.raises(InvalidInput, match="replicas of a job need the measuring wrapper"):
        submit_jobs(wanted)
