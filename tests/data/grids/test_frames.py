"""Images and video frames as grids: brightness, order, masks, and every refusal in one sentence."""

import numpy as np
import pytest
from matplotlib.image import imsave
from PIL import Image

from gpx.data import FrameFolder
from gpx.data.grids.frames import brightness
from gpx.errors import ConfigError, DataError


def test_frames_and_their_masks(tmp_path):
    folder, masks = tmp_path / "video", tmp_path / "masks"
    folder.mkdir()
    masks.mkdir()
    frames = np.round(np.random.default_rng(3).random((2, 4, 5)) * 255) / 255
    for i, frame in enumerate(frames):
        imsave(folder / f"f{i}.png", frame, cmap="gray", vmin=0.0, vmax=1.0)
        seen = np.ones((4, 5))
        seen[i, 0] = 0.0
        imsave(masks / f"f{i}.png", seen, cmap="gray", vmin=0.0, vmax=1.0)
    grid = FrameFolder(str(folder), mask=str(masks)).grid()
    assert grid.values.shape == (2, 4, 5)
    assert np.isnan(grid.values[0, 0, 0])
    assert np.isnan(grid.values[1, 1, 0])
    assert int(np.isnan(grid.values).sum()) == 2
    seen = ~np.isnan(grid.values)
    np.testing.assert_allclose(
        grid.values[seen], frames[seen], atol=1.1 / 255
    )  # the colour map rounds
    one = FrameFolder(str(folder), mask=str(masks / "f0.png"), scale=2).grid()
    assert one.values.shape == (2, 2, 3)
    (folder / "f0.png").unlink()
    assert FrameFolder(str(folder)).grid().values.shape == (4, 5)


def test_frames_that_do_not_fit(tmp_path):
    folder = tmp_path / "video"
    with pytest.raises(DataError, match="is not a folder"):
        FrameFolder(str(folder)).table()
    folder.mkdir()
    with pytest.raises(DataError, match="holds no image"):
        FrameFolder(str(folder)).table()
    imsave(folder / "a.png", np.zeros((3, 4)), cmap="gray")
    imsave(folder / "b.png", np.zeros((3, 5)), cmap="gray")
    with pytest.raises(DataError, match="frames of equal size"):
        FrameFolder(str(folder)).table()
    (folder / "b.png").unlink()
    imsave(tmp_path / "mask.png", np.zeros((4, 4)), cmap="gray")
    with pytest.raises(DataError, match=r"the mask of a.png has shape \(4, 4\)"):
        FrameFolder(str(folder), mask=str(tmp_path / "mask.png")).table()
    with pytest.raises(DataError, match="there is no mask"):
        FrameFolder(str(folder), mask=str(tmp_path / "none.png")).table()
    with pytest.raises(ConfigError, match=r"scale=0"):
        FrameFolder(str(folder), scale=0)
    (folder / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="cannot be read as an image"):
        FrameFolder(str(folder)).table()


def test_brightness_is_the_mean_of_the_colours_whatever_the_format(tmp_path):
    draws = np.random.default_rng(0)
    colours = draws.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    alpha = draws.integers(0, 256, (3, 4, 1), dtype=np.uint8)
    want = colours.mean(axis=2) / 255.0
    imsave(tmp_path / "plain.png", colours)
    imsave(tmp_path / "clear.png", np.concatenate([colours, alpha], axis=2))
    imsave(tmp_path / "plain.tiff", colours)
    for name in ("plain.png", "clear.png", "plain.tiff"):
        found = brightness(tmp_path / name)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-6)  # PNG is read in float32


def test_a_grey_image_of_sixteen_bits_keeps_them(tmp_path):
    values = np.array([[0, 257, 32768], [65535, 1, 2]], dtype=np.uint16)
    body = b"P5 3 2 65535\n" + values.astype(">u2").tobytes()
    (tmp_path / "deep.pgm").write_bytes(body)
    Image.fromarray(values).save(tmp_path / "deep.png")
    Image.fromarray(values).save(tmp_path / "deep.tif")
    for name in ("deep.pgm", "deep.png", "deep.tif"):
        np.testing.assert_allclose(brightness(tmp_path / name), values / 65535.0, atol=1e-7)


def test_images_whose_white_is_unknown_are_refused(tmp_path):
    Image.fromarray(np.array([[0.5, 3.0]], dtype=np.float32)).save(tmp_path / "float.tif")
    Image.fromarray(np.array([[5, 70000]], dtype=np.int32)).save(tmp_path / "long.tif")
    for name in ("float.tif", "long.tif"):
        with pytest.raises(DataError, match=f"{name} .* save it with 8 or 16 bits per channel"):
            brightness(tmp_path / name)


def test_frames_come_in_the_order_of_their_names_and_other_files_are_left_alone(tmp_path):
    for name, level in (("b.png", 1.0), ("a.png", 0.0), ("c.PNG", 0.2)):
        imsave(tmp_path / name, np.full((2, 2), level), cmap="gray", vmin=0.0, vmax=1.0)
    (tmp_path / "notes.txt").write_text("no frame")
    grid = FrameFolder(tmp_path.name, root=str(tmp_path.parent)).grid()
    np.testing.assert_allclose(grid.values[:, 0, 0], [0.0, 1.0, 0.2], atol=1.1 / 255)
    assert grid.axis_names == (("frame",), ("row",), ("column",))
    assert [axis.tolist() for axis in grid.axes] == [[0.0, 1.0, 2.0], [0.0, 1.0], [0.0, 1.0]]
    assert sorted(grid.checksums) == ["a.png", "b.png", "c.PNG"]
    assert all(len(digest) == 64 for digest in grid.checksums.values())


def test_an_edited_mask_shows_in_the_checksums(tmp_path):
    frames = tmp_path / "frames"
    frames.mkdir()
    imsave(frames / "a.png", np.full((2, 2), 0.5), cmap="gray", vmin=0.0, vmax=1.0)
    found = []
    for level in (1.0, 0.0):
        blank = np.array([[1.0, 1.0], [1.0, level]])
        imsave(tmp_path / "mask.png", blank, cmap="gray", vmin=0.0, vmax=1.0)
        found.append(FrameFolder("frames", "mask.png", root=str(tmp_path)).grid().checksums)
    first, second = found
    assert first["a.png"] == second["a.png"]
    assert first["mask mask.png"] != second["mask mask.png"]


def test_hidden_files_and_folders_are_no_frames(tmp_path):
    imsave(tmp_path / "1.png", np.ones((2, 2)), cmap="gray", vmin=0.0, vmax=1.0)
    (tmp_path / "._1.png").write_bytes(b"of a file system")
    (tmp_path / "old.png").mkdir()
    assert FrameFolder(str(tmp_path)).grid().values.shape == (2, 2)


def test_a_frame_that_is_a_link_to_nothing_is_an_error(tmp_path):
    """Left out in silence, all later frames would move."""
    imsave(tmp_path / "1.png", np.ones((2, 2)), cmap="gray", vmin=0.0, vmax=1.0)
    (tmp_path / "2.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError, match=r"2\.png"):
        FrameFolder(str(tmp_path)).grid()
