"""What is handed to the plane: places by their names, and terms that can be."""

from datetime import UTC, datetime, timedelta

import pytest

from leadline.app import settings
from leadline.app.composition import toolbox
from leadline.app.jobs.job_request import JobRequest, resolve_request
from leadline.app.jobs.journal import JobSubmission, submit_jobs
from leadline.app.jobs.plane_options import PlaneOptions, build_policy
from leadline.app.jobs.schedulers import check_at_hand, resolve_job_targets
from leadline.app.jobs.submit import preview_submission
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


def places_of(on):
    return tuple(target.place for target in resolve_job_targets(on, toolbox().catalog))


def test_places_have_the_names_of_the_catalog_or_of_the_users_own_file():
    reach('[systems.MyLab]\nhost = "lab"\nfolder = "/scratch/me"\nscheduler = "slurm"\n')
    places = places_of(["pitzer:gpu", "Slurm:a", "LOCAL", "mylab:b"])
    assert places == (Place("Pitzer", "gpu"), Place("slurm", "a"), Place("local"), Place("MyLab", "b"))


@pytest.mark.parametrize(
    ("place", "says"),
    [("Pizter:gpu", "did you mean 'Pitzer'"), ("slrum", "did you mean 'slurm'"), ("Pitzer:gpuu", "did you mean 'gpu'")],
)
def test_a_misspelt_place_is_named_with_near_ones(place, says):
    with pytest.raises(UnknownName, match=says):
        places_of([place])


@pytest.mark.parametrize(
    ("places", "says"),
    [(["local", "local"], "twice"), (["local:gpu"], "no partitions"), (["Pitzer"], "has several partitions")],
)
def test_a_place_that_cannot_be_is_refused(places, says):
    with pytest.raises(InvalidInput, match=says):
        places_of(places)


def test_an_unreachable_target_is_refused_with_the_fix(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    request = JobRequest(("./job",), ("Pitzer:gpu",), account="A")
    with pytest.raises(SchedulerUnreachable, match=r"no sbatch, .*reach\.toml.*--dry-run prints the script"):
        resolve_request(request, toolbox(), at_hand=True)
    assert resolve_request(request, toolbox()).spec.workdir is None
    reach('[systems.Pitzer]\nhost = "pitzer.osc.edu"\nfolder = "/fs/scratch/me"\n')
    for target in resolve_job_targets(["Pitzer:gpu", "local"], toolbox().catalog):
        check_at_hand(target)


def test_terms_become_the_policy_in_seconds_and_moments():
    terms = PlaneOptions(attempts=2, node_hours=1.5, cost=3.0, resumes=True, checkpoint_signal="sigusr1",
                  checkpoint_before="5m", deadline="6h", risk=0.1, resizes=False, measured=False)  # fmt: skip
    policy = build_policy(LOCAL, terms)
    assert (
        policy.attempts, policy.node_s, policy.cost, policy.resumes, policy.checkpoint_signal, policy.checkpoint_s,
    ) == (2, 5400.0, 3.0, True, "USR1", 300.0)  # fmt: skip
    assert (policy.risk, policy.resizes, policy.measured) == (0.1, False, False)
    assert not policy.may_restart
    assert build_policy(LOCAL, PlaneOptions(may_restart=True)).may_restart
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
        (PlaneOptions(resizes=False, may_restart=True), "--may-restart and --no-resize exclude each other"),
        (PlaneOptions(attempts=0), "--attempts is 0"),
        (PlaneOptions(cost=float("nan")), "--most-cost is nan"),
        (PlaneOptions(risk=1.0), "must be between 0 and 1"),
        (PlaneOptions(checkpoint_signal="KILL"), "not a signal that a command can handle"),
        (PlaneOptions(checkpoint_signal="FIVE"), "not a signal that a command can handle"),
        (PlaneOptions(deadline="soon"), "'soon' is not a duration: .*, or a time such as"),
        (PlaneOptions(deadline="12"), "--deadline: '12' has no unit: write 12h, 12m or 12s, or a time such as"),
        (PlaneOptions(checkpoint_before="2"), "'2' has no unit: write 2h, 2m or 2s"),
        (PlaneOptions(deadline="2026-13-45"), "not a time"),
        (PlaneOptions(deadline="2020-01-01"), "is in the past"),
        (PlaneOptions(deadline="99999999999d"), "'99999999999d' is too far away"),
    ],
)
def test_terms_that_cannot_be_are_refused_by_name(terms, says):
    with pytest.raises(InvalidInput, match=says):
        build_policy(LOCAL, terms)


def test_a_submission_has_the_current_folder_and_its_script_goes_there(tmp_path, monkeypatch):
    monkeypatch.setattr("leadline.app.jobs.schedulers.shutil.which", lambda command: f"/usr/bin/{command}")
    options = PlaneOptions(array="0-9:3", after_any=("ab12",))
    request = JobRequest(("./job",), ("slurm:batch", "local"), cores=2, options=options)
    submission = resolve_request(request, toolbox())
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
    on_slurm, here = preview_submission(submission)
    assert (str(on_slurm.target.place), str(here.target.place)) == ("slurm:batch", "local")
    assert f"\ncd -- {tmp_path}\n" in on_slurm.text.script
    assert "--array=0,3,6,9" in on_slurm.text.argv


def test_a_site_that_would_refuse_the_job_stops_the_submission():
    request = JobRequest(("./job",), ("Pitzer:gpu",), cores=5000, gpus=1, memory_bytes=1, walltime_s=60.0)
    with pytest.raises(InvalidInput, match="are not available in partition"):
        resolve_request(request, toolbox())
    with pytest.raises(InvalidInput, match="exclude each other"):
        resolve_request(JobRequest(("./job",), options=PlaneOptions(after=("a",), after_any=("b",))), toolbox())


def test_a_scheduler_that_leadline_does_not_support_is_refused():
    reach('[systems.MyLab]\nscheduler = "lsf"\n')
    with pytest.raises(InvalidInput, match=r"MyLab has no supported scheduler \(lsf\)"):
        places_of(["MyLab:b"])


def test_a_system_over_ssh_is_left_its_own_folder():
    reach('[systems.MyLab]\nhost = "no.such.host.invalid"\nfolder = "/scratch/me"\nscheduler = "slurm"\n')
    submission = resolve_request(JobRequest(("./job",), ("MyLab:b",)), toolbox())
    assert submission.spec.workdir is None
    (preview,) = preview_submission(submission)
    assert "#SBATCH --partition=b" in preview.text.script
    assert "--chdir=/scratch/me" in preview.text.argv
    assert "cannot be reached by ssh" in preview.text.caveat


def test_replicas_need_the_measuring_wrapper():
    places = (Place("local"), Place("slurm"))
    with pytest.raises(InvalidInput, match="--copies needs the measuring wrapper"):
        build_policy(places, PlaneOptions(copies=2, measured=False))
    wanted = JobSubmission(JobSpec("x", ("true",), ResourceSpec()), Policy(places, copies=2, measured=False))
    with pytest.raises(InvalidInput, match="replicas of a job need the measuring wrapper"):
        submit_jobs(wanted)
