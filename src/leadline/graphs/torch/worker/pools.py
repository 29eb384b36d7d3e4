"""Pools of processes: the first of the tasks that train runs here, in place of all. Other tasks run as they would."""

import concurrent.futures
import multiprocessing.pool
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial, wraps
from typing import Any, Callable, Optional

from leadline.graphs.torch.worker.training_code import trains


class _Task(Future):  # type: ignore[type-arg]
    """A task that trains, with the methods of the results of executors and of ``multiprocessing`` pools."""

    def __init__(self, ranks: Any, pool: Any, call: Callable[[], Any], callback: Any = None) -> None:
        super().__init__()
        self.ranks, self.pool, self.call, self.callback = ranks, pool, call, callback
        self.processes = getattr(pool, "_processes", None)
        if not isinstance(self.processes, int):  # that of an executor is a dictionary
            self.processes = pool._max_workers

    def run(self) -> None:
        """Make the call, as the first one of a process that the pool starts."""
        if self.pool._initializer is not None:
            self.pool._initializer(*self.pool._initargs)
        self.end_with(self.call())

    def end_with(self, value: Any) -> None:
        """End with a result, which other tasks may have too."""
        self.set_result(list(value) if isinstance(value, list) else value)  # an executor empties a list that it gets
        if self.callback is not None:
            self.callback(value)

    def result(self, timeout: Any = None) -> Any:
        """Return the result of the task, or that of the first of the pool's tasks."""
        self.ranks.run_first()
        return super().result(timeout)

    def done(self) -> bool:
        """Return whether the task has ended, as it does before anything asks."""
        self.ranks.run_first()
        return super().done()

    def wait(self, timeout: Optional[float] = None) -> None:
        """Wait for the end of the task."""
        self.ranks.run_first()

    get, ready, successful = result, done, done


def replace_pools(ranks: Any) -> None:
    """Let the pools of ``multiprocessing`` and ``concurrent.futures`` run their ranks as ``ranks`` does processes."""
    _replace_executor(ranks)
    kind: Any = multiprocessing.pool.Pool
    start_late(kind)
    apply, map_, join = kind.apply_async, kind._map_async, kind.join

    def apply_task(
        pool: Any, func: Any, args: Any = (), kwds: Any = None, callback: Any = None, *rest: Any, **named: Any
    ) -> Any:
        if not _trains_in(pool, func, *args, *(kwds or {}).values()):
            return apply(pool, func, args, kwds or {}, callback, *rest, **named)
        task = _Task(ranks, pool, partial(func, *args, **(kwds or {})), callback)
        ranks.waiting.append(task)
        return task

    def map_tasks(
        pool: Any, func: Any, iterable: Any, mapper: Any, chunksize: Any = None, callback: Any = None, *rest: Any
    ) -> Any:
        if not _trains_in(pool, func, iterable):
            return map_(pool, func, iterable, mapper, chunksize, callback, *rest)
        tasks = [_Task(ranks, pool, partial(_first, mapper, func, item)) for item in iterable]
        ranks.waiting += tasks
        ranks.run_first(in_loop=False)
        whole = _Task(ranks, pool, list, callback)
        whole.end_with([task.result() for task in tasks])
        return whole

    def iterate(original: Any) -> Any:
        @wraps(original)
        def call(pool: Any, func: Any, iterable: Any, *rest: Any, **options: Any) -> Any:
            if _trains_in(pool, func, iterable):
                return iter(pool.map(func, iterable))
            return original(pool, func, iterable, *rest, **options)

        return call

    kind.apply_async, kind._map_async, kind.join = apply_task, map_tasks, _after_first(ranks, join)
    kind.imap, kind.imap_unordered = iterate(kind.imap), iterate(kind.imap_unordered)


def _replace_executor(ranks: Any) -> None:
    kind: Any = ProcessPoolExecutor
    submit = kind.submit

    def submit_task(executor: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if not trains(fn, *args, *kwargs.values()):
            return submit(executor, fn, *args, **kwargs)
        task = _Task(ranks, executor, partial(fn, *args, **kwargs))
        ranks.waiting.append(task)
        return task

    kind.submit, kind.shutdown = submit_task, _after_first(ranks, kind.shutdown)
    modules: Any = (concurrent.futures, concurrent.futures._base)
    for module in modules:
        for name in ("as_completed", "wait"):
            setattr(module, name, _after_first(ranks, getattr(module, name)))


def _after_first(ranks: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        ranks.run_first(in_loop=False)
        return original(*args, **kwargs)

    return call


def _first(mapper: Any, func: Any, item: Any) -> Any:
    """Return the result of one element; ``mapper`` takes many."""
    return mapper((func, [item]))[0]


def start_late(kind: Any) -> None:
    """Start the processes of a pool with its first task that does not train: ranks would need a GPU."""
    start = kind._repopulate_pool

    def start_unless_new(pool: Any) -> None:
        if isinstance(pool, multiprocessing.pool.ThreadPool) or pool._state != multiprocessing.pool.INIT:
            start(pool)

    kind._repopulate_pool = start_unless_new


def _trains_in(pool: Any, func: Any, *arguments: Any) -> bool:
    """Return whether a task of a pool of processes trains; if not, start the pool."""
    if isinstance(pool, multiprocessing.pool.ThreadPool):
        return False
    if trains(func, *arguments):
        return True
    if not pool._pool and pool._state == multiprocessing.pool.RUN:
        pool._repopulate_pool()
        pool._change_notifier.put(None)  # the thread that watches the processes looks again
    return False
