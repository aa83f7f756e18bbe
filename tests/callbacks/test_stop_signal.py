"""Signals end training cleanly after the current step, even if the main thread is blocked inside TensorFlow."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from tensorpack.callbacks import Callback

from tests.waiting import wait_until
from towernmt.callbacks.stop_on_signal import StopOnSignal


def send_at(step, number):
    return lambda callback: os.kill(os.getpid(), number) if callback.global_step == step else None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_ends_training_after_the_present_step(train, do, number):
    ended = []

    class Saver(Callback):
        def _after_train(self):
            ended.append(self.global_step)

    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    stop = StopOnSignal()
    trainer, _ = train([do(send_at(3, number)), Saver(), stop], steps=100)
    assert trainer.loop.global_step == 3 and ended == [3]
    assert stop.received == number
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == handlers
    assert signal.set_wakeup_fd(-1) == -1


def test_an_ignored_hangup_as_under_nohup_remains_ignored(train, do):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopOnSignal()
        trainer, _ = train([do(send_at(2, signal.SIGHUP)), stop], steps=4)
        assert trainer.loop.global_step == 4 and stop.received is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_interrupts_at_once(train, do):
    steps = []

    def twice(callback):
        steps.append(callback.global_step)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train([do(twice), StopOnSignal()], steps=100)
    assert steps == [1]


def test_a_second_sigterm_does_not_hurry(train, do):
    def twice(_):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    trainer, _ = train([do(twice), StopOnSignal()], steps=100)
    assert trainer.loop.global_step == 1


def test_outside_the_main_thread_signals_are_left_alone(train):
    handler = signal.getsignal(signal.SIGTERM)
    stop = StopOnSignal()
    results = []
    thread = threading.Thread(target=lambda: results.append(train([stop], steps=2)))
    thread.start()
    thread.join()
    assert results[0][0].loop.global_step == 2
    assert stop.received is None and signal.getsignal(signal.SIGTERM) is handler


BLOCKED = """
import os, signal, sys, threading
from tensorpack.callbacks import Callback
from tensorpack.input_source import PlaceholderInput
from tensorpack.tfutils.sesscreate import NewSessionCreator
from tensorpack.tfutils.sessinit import JustCurrentSession
from tensorpack.train import Trainer
from towernmt.callbacks.stop_on_signal import StopOnSignal
from towernmt.core.tf_compat import tf, tf1

class Blocked(Trainer):                    # its step waits for ever: nobody fills the queue
    pass

class Say(Callback):
    def _after_train(self):
        print("saved", flush=True)

# Said from inside the step: from then on the main thread waits in TensorFlow, and runs no handler.
say = tf1.py_func(lambda: print("blocked", flush=True), [], [])
queue = tf1.FIFOQueue(1, tf.float32)
close = queue.close(cancel_pending_enqueues=True)
trainer = Blocked()
with tf1.control_dependencies([say]):
    trainer.train_op = queue.dequeue()
stop = StopOnSignal(interrupt={interrupt}, grace={grace})
trainer.setup_callbacks([Say(), stop], [])
trainer.initialize(NewSessionCreator(), JustCurrentSession())
trainer.main_loop(10, 1, 1)
sys.exit(128 + stop.received)
"""


@pytest.mark.processes
def test_a_blocked_step_is_interrupted_after_the_grace_and_training_ends_cleanly(start_program):
    process = start_program(BLOCKED.format(interrupt="lambda: trainer.sess.run(close)", grace=0.2))
    process.wait_for("^blocked$")
    process.send(signal.SIGTERM)
    result = process.wait()
    assert result.status == 128 + signal.SIGTERM, result.errors
    assert "saved" in result.output


@pytest.mark.processes
def test_a_second_ctrl_c_ends_a_process_that_cannot_be_unblocked(start_program):
    process = start_program(BLOCKED.format(interrupt="None", grace=0.2))
    process.wait_for("^blocked$")
    process.send(signal.SIGINT)

    def ends() -> bool:
        process.send(signal.SIGINT)     # the kernel merges signals that come before the first was delivered
        return process.popen.poll() is not None

    wait_until(ends)
    assert process.wait().status == 128 + signal.SIGINT
