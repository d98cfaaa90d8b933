"""Stop requests: what each signal does before and after a run can be saved, and what libraries make of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from tokenswift_cli.errors import ModelError, RunDirectoryError
from tokenswift_cli.signals import EXIT_CODES, HANG_UP, StopRequests

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals to itself")

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A signal that nobody takes fails the test instead of ending pytest."""
    before = {signal.Signals[name]: signal.signal(signal.Signals[name], not_taken) for name in CODES}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def not_taken(number: int, frame: FrameType | None) -> None:
    pytest.fail(f"{signal.Signals(number).name} was not taken")


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    for _ in range(1000):  # the handler runs between two of these
        pass


def code_of(stopped: BaseException) -> object:
    return 130 if isinstance(stopped, KeyboardInterrupt) else getattr(stopped, "code", None)


def test_exit_codes_are_128_and_the_number() -> None:
    assert {number.name: code for number, code in EXIT_CODES.items()} == CODES
    assert all(code == 128 + number for number, code in EXIT_CODES.items())


@pytest.mark.parametrize("name", CODES)
def test_before_there_is_anything_to_save_a_signal_stops_at_once(name: str) -> None:
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught, StopRequests():
        send(signal.Signals[name])
    assert code_of(caught.value) == CODES[name]


@pytest.mark.parametrize("name", CODES)
def test_an_error_that_a_library_made_of_the_interrupt_becomes_the_interrupt_again(name: str) -> None:
    """Case 27: transformers' lazy imports turned Ctrl-C into "Could not import module" and exit code 1."""
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught, StopRequests():
        try:
            send(signal.Signals[name])
        except BaseException as error:
            raise ModelError("Could not import module 'LlamaConfig'") from error
    assert code_of(caught.value) == CODES[name]
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None


def test_an_error_without_a_signal_stays_what_it_is() -> None:
    with pytest.raises(ModelError), StopRequests():
        raise ModelError("no such model")


def test_a_swallowed_interrupt_is_heard_at_the_first_step_and_later_errors_are_shown() -> None:
    with pytest.raises(RunDirectoryError), StopRequests() as stops:
        with contextlib.suppress(KeyboardInterrupt):
            send(signal.SIGINT)
        stops.defer()
        assert (stops.requested, stops.exit_code) == (True, 130)
        raise RunDirectoryError("the disk is full")


@pytest.mark.parametrize("name", CODES)
def test_when_there_is_something_to_save_the_first_signal_only_asks(name: str) -> None:
    with StopRequests() as stops:
        stops.defer()
        assert (stops.requested, stops.exit_code) == (False, 0)
        send(signal.Signals[name])
        assert (stops.requested, stops.exit_code) == (True, CODES[name])


@pytest.mark.parametrize("first", CODES)
@pytest.mark.parametrize("second", ["SIGINT", "SIGTERM"])
def test_the_second_signal_stops_at_once(first: str, second: str) -> None:
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught, StopRequests() as stops:
        stops.defer()
        send(signal.Signals[first])
        send(signal.Signals[second])
    assert code_of(caught.value) == CODES[second]


@pytest.mark.parametrize("first", CODES)
def test_a_closed_terminal_may_hang_up_more_than_once(first: str) -> None:
    """Shell and kernel both send SIGHUP; the checkpoint must not be cut short by it."""
    with StopRequests() as stops:
        stops.defer()
        send(signal.Signals[first])
        send(signal.SIGHUP)
        send(signal.SIGHUP)
        assert stops.exit_code == CODES[first]


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    assert HANG_UP == signal.SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequests() as stops:
        send(signal.SIGHUP)
        stops.defer()
        send(signal.SIGHUP)
        assert not stops.requested
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in EXIT_CODES]
    with StopRequests():
        assert [signal.getsignal(number) for number in EXIT_CODES] != before
    assert [signal.getsignal(number) for number in EXIT_CODES] == before


def test_outside_the_main_thread_nothing_is_touched() -> None:
    before = [signal.getsignal(number) for number in EXIT_CODES]
    seen = []

    def work() -> None:
        with StopRequests() as stops:
            seen.append([signal.getsignal(number) for number in EXIT_CODES])
            seen.append([stops.requested])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, [False]]


def test_where_there_is_no_hang_up_signal_the_others_work() -> None:
    script = (
        "import signal; del signal.SIGHUP\n"
        "from tokenswift_cli.signals import EXIT_CODES, HANG_UP, StopRequests\n"
        "with StopRequests(): print(HANG_UP, sorted(EXIT_CODES.values()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "None [130, 143]\n"
