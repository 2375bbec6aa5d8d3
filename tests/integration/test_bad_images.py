"""What a run of images says, in one sentence and before training, to what does not fit."""

import numpy as np
import pytest

from gpx.commands.predict import main as predict
from gpx.errors import GPXError
from gpx.options.composition import composed
from gpx.runs import RunFolder, load, run

SMALL = ["trainer.tensorboard=false", "trainer.eval_every=0", "trainer.max_steps=1"]
DRAWS = np.random.default_rng(0)
X, Y = DRAWS.random((60, 8, 8)), np.arange(60) % 3


def of_objects(images):
    found = np.empty(len(images), dtype=object)
    found[:] = images
    return found


def parted(test_x=X[:20], test_y=Y[:20], x=X, y=Y):
    return {"x_train": x, "y_train": y, "x_test": test_x, "y_test": test_y}


ONE = np.where(np.arange(60) == 0, 1, 0)
CASES = {
    "sizes": (parted(test_x=X[:20, :7, :7]), [], "images of different sizes: 7 x 7 and 8 x 8"),
    "sizes in one array": (
        {"x": of_objects([*X[:59], X[59, :7]]), "y": Y},
        [],
        "holds objects, expected numbers .* resize images to one size",
    ),
    "labels": ({"x": X, "y": Y + 0.5}, [], "expected a class label"),
    "labels out of range": (
        {"x": X, "y": Y},
        ["likelihood.num_classes=2"],
        "has 3 classes and the likelihood 2: set likelihood.num_classes=3, or leave it out",
    ),
    "a class without rows": (
        parted(y=np.where(Y == 1, 0, Y)),
        [],
        "class 1 has no training rows",
    ),
    "one class": (parted(y=0 * Y, test_y=0 * Y[:20]), [], "expected at least two classes"),
    "nothing to calibrate on": (
        {"x": X, "y": Y},
        ["calibrate=temperature", "calibrate.fraction=0.001"],
        "0.001 of 54 training rows are 0 rows to calibrate on",
    ),
    "one class to calibrate on": (
        parted(y=ONE, test_y=ONE[:20]),
        ["calibrate=temperature", "calibrate.fraction=0.05", "seed=1"],
        "all 3 held-out rows are of one class",
    ),
    "a class to calibrate on alone": (
        parted(x=X[:8], y=np.array([0, 0, 0, 0, 1, 2, 3, 4])),
        ["calibrate=temperature", "calibrate.fraction=0.5"],
        "all rows of class . are held out",
    ),
    "a dropout rate of one": (
        {"x": X, "y": Y},
        ["approx=cnn_mcd", "approx.keep=0"],
        "approx.keep=0: .* dropout rate of 1 leaves nothing",
    ),
    "depth": ({"x": X, "y": Y}, ["approx=cnn_deep_rf", "approx.depth=0"], "approx.depth=0"),
    "nothing": ({"x": X[:0], "y": Y[:0]}, [], "expected images, and one label for each"),
    "other arrays": (
        {"images": X, "labels": Y},
        [],
        "has no array 'x', it has images, labels; an archive of images has x and y, or x_train",
    ),
    "no test part": (
        {"x_train": X, "y_train": Y},
        [],
        "no array 'x_test', it has x_train, y_train; an archive of images has x and y, or x_train",
    ),
    "channels": ({"x": np.ones((60, 8, 8, 4)), "y": Y}, [], "with one or three channels c"),
    "a periodic kernel": (
        {"x": X, "y": Y},
        ["approx=cnn_rf", "kernel=periodic"],
        "a Periodic kernel has a period for each of its 64 inputs, and here it gets 256 others",
    ),
    "no images": (
        {"x": X[:, :7], "y": Y},
        ["approx.image_shape=null"],
        "56 inputs are no square image",
    ),
    "patches": (
        {"x": X, "y": Y},
        ["approx=conv_gp", "approx.patch_size=9"],
        "a patch of 9 x 9 pixels does not fit into images of 8 x 8",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit(case, tmp_path):
    arrays, options, words = CASES[case]
    np.savez(tmp_path / "images.npz", **arrays)
    given = ["approx=cnn", "data=images", f"data.path={tmp_path / 'images.npz'}", *SMALL, *options]
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(GPXError, match=words) as caught:
        run(composed(given), folder)
    assert "\n" not in str(caught.value)
    assert not folder.metrics.exists()


def test_images_that_are_not_square_keep_their_shape(tmp_path):
    """48 pixels are 6 x 8, and not the 3 x 4 x 4 of a square image in colour."""
    np.savez(tmp_path / "images.npz", x=X[:, :6], y=Y)
    folder = RunFolder(tmp_path / "run")
    given = ["approx=cnn", "data=images", f"data.path={tmp_path / 'images.npz'}", *SMALL]
    run(composed([*given, "trainer.figures=false"]), folder)
    assert list(folder.read_config().facts.image_shape) == [6, 8]
    model = load(folder.path)
    assert next(iter(model.posterior.network.body.modules()))[0][0].shape == (1, 6, 8)
    found = model.predict_classes(X[:3, :6]).probability
    np.testing.assert_array_equal(
        found, model.predict_classes(X[:3, :6].reshape(3, -1)).probability
    )
    np.savez(tmp_path / "new.npz", x=X[:1, :6])
    predict([f"run={folder.path}", f"input={tmp_path / 'new.npz'}", f"output={tmp_path / 'o.csv'}"])
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 2
    with pytest.raises(
        GPXError, match="takes images of 6 x 8 pixels with 1 channel, got an array of"
    ):
        model.predict_classes(np.ones((4, 6, 8, 3)))
