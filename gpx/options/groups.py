"""The config groups that are nodes of the config of a run.

Other groups, such as ``basis=``, set options of one of these.
"""

FIXED_GROUPS = ("data", "kernel", "mean", "likelihood", "approx", "calibrate", "prior")
"""Must not change when a run is resumed: its checkpoint belongs to them."""
TRAINING_GROUPS = ("objective", "optimizer", "trainer")
"""May change when a run is resumed, except ``trainer.dtype``; the user is told of changes."""
NODES = (*FIXED_GROUPS, *TRAINING_GROUPS, "init")  # which a resumed run does not use
"""All of them."""
REQUIRED_GROUPS = ("trainer", "data", "likelihood", "approx", "objective", "optimizer")
"""Every run needs these; whether kernel and mean are needed depends on ``approx``."""
