"""Options with which ``gpx.fit`` takes a second."""

QUICK = ("approx=sgpr", "approx.num_inducing=15", "trainer.max_steps=5", "init=constants")
QUICK += ("trainer.figures=false", "trainer.tensorboard=false", "trainer.device=cpu")
QUICK += ("trainer.baselines=false",)
