"""A run calls only the hooks that belong to it; two hooks that feed the same tensor are refused."""

from __future__ import annotations

import pytest
from tensorpack.callbacks import Callback

from towernmt.callbacks.hooks import HookToCallback
from towernmt.callbacks.run_hooks import separate_runs
from towernmt.core.errors import SettingsError
from towernmt.core.runs import Run, belong_to, current_run, run_as
from towernmt.core.tf_compat import tf, tf1


class Seen(tf1.train.SessionRunHook):
    """Records the runs that it sees; may fetch and feed a tensor."""

    def __init__(self, fetch=None, feed=None):
        self.kinds, self.values, self._fetch, self._feed = [], [], fetch, feed

    def before_run(self, run_context):
        self.kinds.append(current_run())
        return tf1.train.SessionRunArgs(self._fetch, self._feed)

    def after_run(self, run_context, run_values):
        self.values.append(run_values.results)


class SeenToo(Seen):
    """A hook with a different name in messages."""


def session(*hooks):
    return tf1.train.MonitoredSession(hooks=separate_runs(hooks))


def test_a_hook_without_a_declaration_is_called_only_at_train_steps(graph):
    x, hook = tf.constant(1.0), Seen()
    with session(hook) as sess:
        sess.run(x)
        for kind in (Run.DATA, Run.SAMPLING, Run.VALIDATION, Run.ACCUMULATION):
            with run_as(kind):
                sess.run(x)
    assert hook.kinds == [Run.TRAIN_STEP] and len(hook.values) == 1


def test_a_hook_sees_the_runs_that_it_names(graph):
    x, hook = tf.constant(1.0), belong_to(Seen(), Run.SAMPLING, Run.VALIDATION)
    with session(hook) as sess:
        for kind in Run:
            with run_as(kind):
                sess.run(x)
    assert hook.kinds == [Run.SAMPLING, Run.VALIDATION]


def test_a_hook_that_names_an_operation_sees_whatever_run_computes_it(graph):
    x = tf.constant(1.0)
    y = x + 1.0
    z = y * 2.0
    hook = belong_to(Seen(), y)
    with session(hook) as sess:
        sess.run({"only": x})
        with run_as(Run.DATA):
            sess.run([{"sum": z}])
    assert hook.kinds == [Run.DATA]


def test_a_run_that_fetches_data_needs_nothing_that_the_hooks_need(graph):
    fed = tf1.placeholder(tf.float32, [], "fed")
    rate = tf1.placeholder(tf.float32, [], "rate")
    hook = Seen(fetch=fed * rate, feed={rate: 0.5})
    with session(hook) as sess:
        with run_as(Run.DATA):
            value = sess.run("eight:0")
        sess.run(fed, {fed: value})
    assert hook.values == [4.0]


@pytest.fixture(autouse=True)
def eight(graph):
    tf.constant(8.0, name="eight")


def test_two_hooks_that_declare_the_same_feed_are_refused_by_name_when_they_are_registered(graph):
    first_hook, second_hook = Seen(), SeenToo()
    first_hook.feeds, second_hook.feeds = ("rate:0",), [tf1.placeholder(tf.float32, [], "rate")]
    with pytest.raises(SettingsError, match="Seen and SeenToo both feed the tensor 'rate:0'"):
        separate_runs([first_hook, HookToCallback(second_hook)])


def test_two_hooks_that_feed_the_same_tensor_undeclared_are_refused_at_the_first_run(graph):
    rate = tf1.placeholder(tf.float32, [], "rate")
    first_hook, second_hook = Seen(rate, {rate: 1.0}), SeenToo(rate, {rate: 2.0})
    conflict = "Seen and SeenToo both feed .*'rate:0'"
    with session(first_hook, second_hook) as sess, pytest.raises(SettingsError, match=conflict):
        sess.run(rate)


def test_a_feed_of_the_program_and_of_a_hook_is_refused_by_name(graph):
    rate = tf1.placeholder(tf.float32, [], "rate")
    with session(Seen(rate, {rate: 1.0})) as sess, pytest.raises(SettingsError, match="the program .* and Seen both"):
        sess.run(rate, {rate: 3.0})


def test_two_hooks_may_feed_the_same_tensor_in_different_runs(graph):
    rate = tf1.placeholder(tf.float32, [], "rate")
    first_hook = Seen(rate, {rate: 1.0})
    second_hook = belong_to(SeenToo(rate, {rate: 2.0}), Run.SAMPLING)
    with session(first_hook, second_hook) as sess:
        assert sess.run(rate) == 1.0
        with run_as(Run.SAMPLING):
            assert sess.run(rate) == 2.0


@pytest.mark.parametrize("runs", [(), ("sampling",), (Run.SAMPLING, 3)])
def test_to_belong_to_something_that_is_no_run_is_refused(runs):
    with pytest.raises(SettingsError, match=r"Seen belongs to .*Run\.TRAIN_STEP"):
        belong_to(Seen(), *runs)
    with pytest.raises(SettingsError, match="name a kind of run"), run_as("sampling"):
        pass


def test_a_class_of_callbacks_may_declare_its_runs(graph):
    class Sampled(Callback):
        belongs_to = (Run.SAMPLING,)
        runs = 0

        def _before_run(self, _):
            self.runs += 1

    from tensorpack.callbacks.hooks import CallbackToHook as TensorpackHook

    callback = Sampled()
    with session(TensorpackHook(callback)) as sess:
        sess.run("eight:0")
        with run_as(Run.SAMPLING):
            sess.run("eight:0")
    assert callback.runs == 1
