import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

import gpx
from gpx.runs.figures import predictions as figures


def draw(figure, tmp_path):
    path = tmp_path / "figure.png"
    figure.savefig(path)
    return path.stat().st_size


def test_predicted_against_observed_states_its_coverage(tmp_path):
    observed = np.linspace(0, 1, 10)
    mean = observed + 0.01
    lower, upper = mean - 0.05, mean + 0.05
    lower[0], upper[0] = 5.0, 6.0  # one point outside its interval
    figure = figures.predicted_against_observed(observed, mean, lower, upper, "strength")
    axes = figure.axes[0]
    assert axes.get_title() == "10 test points, 90.0 % inside the interval"
    assert "strength" in axes.get_xlabel()
    assert draw(figure, tmp_path) > 1000


def test_fitted_function_shows_band_mean_and_data(tmp_path):
    grid = np.linspace(0, 1, 20)
    points = (np.array([0.1, 0.5]), np.array([1.0, 2.0]))
    figure = figures.fitted_function(
        points, points, grid, grid, grid - 1, grid + 1, ("time", "height")
    )
    labels = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    assert labels == {"95 % interval", "mean", "training data", "test data"}
    assert figure.axes[0].get_ylabel() == "height"
    assert draw(figure, tmp_path) > 1000


def test_samples_of_hyperparameters_are_intervals_on_a_log_axis(tmp_path):
    samples = np.exp(np.linspace(-1.0, 1.0, 201))[:, None] * np.array([1.0, 100.0])
    figure = figures.intervals_of_samples(["lengthscale, x", "noise_variance"], samples)
    axes = figure.axes[0]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("lengthscale, x", "noise_variance")
    ]
    (medians,) = axes.lines
    np.testing.assert_allclose(medians.get_xdata(), [1.0, 100.0])
    assert draw(figure, tmp_path) > 1000


def test_a_reliability_diagram_leaves_empty_bins_out(tmp_path):
    counts = np.array([0.0, 3.0, 0.0, 7.0])
    accuracy = np.array([np.nan, 0.4, np.nan, 0.8])
    figure = figures.reliability_diagram(counts, accuracy, accuracy + 0.1, 0.1)
    above, below = figure.axes
    assert above.get_title() == "10 test points, calibration error 0.100"
    assert [bar.get_height() for bar in above.patches] == [0.4, 0.8]
    assert [bar.get_height() for bar in below.patches] == [0.0, 0.3, 0.0, 0.7]
    pale, full = (bar.get_facecolor()[3] for bar in above.patches)
    assert pale < full == 1.0  # three points say little
    assert draw(figure, tmp_path) > 1000


def test_a_reliability_diagram_shows_how_sure_an_accuracy_is():
    counts, accuracy = np.array([40.0, 2.0]), np.array([0.5, 1.0])
    before = (np.array([1.0, 41.0]), np.array([0.0, 0.7]), np.array([0.1, 0.9]), 0.2)
    figure = figures.reliability_diagram(counts, accuracy, accuracy, 0.1, before)
    (bars,) = figure.axes[0].collections
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    # Wilson's interval of 20 of 40, and of 2 of 2
    np.testing.assert_allclose(ends, [[0.352, 0.648], [0.342, 1.0]], atol=1e-3)
    old = next(line for line in figure.axes[0].lines if line.get_label() == figures.WAS)
    assert old.get_ydata().tolist() == [0.7]  # one point alone is not drawn


def test_lengthscales_stand_in_the_order_of_their_weight(tmp_path):
    names = [f"x{k}" for k in range(40)]
    figure = figures.lengthscale_bars(names, np.linspace(4.0, 0.1, 40))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["x39", "x38"]
    assert figure.get_suptitle().startswith("30 of 40 inputs")
    assert draw(figure, tmp_path) > 1000


def test_names_of_inputs_cut_nothing_off():
    names = ["day (days since 1970-01-01)", "temperature is missing", "site=harbour, old"]
    figure = figures.lengthscale_bars(names, np.array([0.5, 1.0, 20.0]))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    axes, renderer = figure.axes[0], canvas.get_renderer()
    texts = [axes.xaxis.label, *axes.get_yticklabels(), *figure.texts]
    assert len(texts) == 5
    for text in texts:
        box = text.get_window_extent(renderer)
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width, text.get_text()


def test_maps_of_two_inputs(tmp_path):
    edges = np.linspace(0, 1, 5), np.linspace(0, 2, 6)
    values = np.add.outer(*edges) / 3
    points = np.random.default_rng(0).uniform(size=(7, 2))
    field = figures.field_map(
        edges, values, values + 1, points, points[:, 0], ("a", "b"), "height", points[:3]
    )
    assert field.axes[0].get_title() == "mean of height"
    assert draw(field, tmp_path) > 1000
    high = points[:, 0] > 0.5
    decision = figures.decision_map(edges, values, points, high, ("a", "b"), None, ("no", "yes"))
    assert decision.axes[0].get_xlabel() == "a"
    assert decision.axes[1].get_ylabel() == "probability of yes"
    assert [text.get_text() for text in decision.legends[0].get_texts()] == ["no", "yes"]
    assert draw(decision, tmp_path) > 1000


def test_sampled_functions_and_inducing_points(tmp_path):
    grid = np.linspace(0, 1, 20)
    points = (np.array([0.1, 0.5]), np.array([1.0, 2.0]))
    figure = figures.sampled_functions(
        points, grid, np.stack([grid, -grid]), ("time", "height"), np.array([0.3])
    )
    labels = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    assert labels == {"training data", "inducing points"}
    assert len(figure.axes[0].lines) == 4
    assert draw(figure, tmp_path) > 1000


def test_a_fitted_function_is_drawn_where_the_test_rows_are(monkeypatch):
    grids = []
    draw_function = figures.fitted_function

    def kept(train, test, grid, *rest):
        grids.append((test[0], grid))
        return draw_function(train, test, grid, *rest)

    monkeypatch.setattr(figures, "fitted_function", kept)
    x = np.linspace(0, 1, 20)
    test = (np.array([-1.0, 0.5, 3.0]), np.zeros(3))
    options = ("approx=exact", "kernel=rbf", "trainer.max_steps=2", "trainer.baselines=false")
    options += ("trainer.figures=true",)
    gpx.fit(x, np.sin(x), *options, test=test, quiet=True, keep=False)
    ((seen, grid),) = grids
    assert sorted(seen) == [-1.0, 0.5, 3.0]
    assert grid.min() < -1.0
    assert grid.max() > 3.0


def test_sampled_functions_are_in_the_units_of_a_transformed_target(monkeypatch):
    drawn = []
    draw_functions = figures.sampled_functions

    def kept(points, grid, paths, *rest):
        drawn.append(paths)
        return draw_functions(points, grid, paths, *rest)

    monkeypatch.setattr(figures, "sampled_functions", kept)
    x = np.linspace(0, 1, 30)
    options = ("approx=exact", "data.target_transform=log", "trainer.max_steps=5")
    options += ("trainer.figures=true", "trainer.baselines=false")
    gpx.fit(x, np.exp(5 * x), *options, quiet=True, keep=False)
    (paths,) = drawn
    assert (paths > 0.0).all()
    assert paths.max() > 100.0


def test_functions_of_a_periodic_kernel_are_drawn_or_their_absence_is_said(tmp_path, capsys):
    """Random features of a periodic kernel do not exist; experts have no joint law either."""
    x = np.linspace(0, 6, 40)
    options = ("kernel=periodic", "trainer.max_steps=1", "init=constants", "trainer.device=cpu")
    options = (*options, "trainer.tensorboard=false", "trainer.baselines=false")
    exact = gpx.fit(x, np.sin(x), "approx=exact", *options, folder=tmp_path / "exact")
    assert (exact.folder / "figures" / "sampled_functions.png").stat().st_size > 1000
    assert "no figure of sampled functions" not in capsys.readouterr().err
    experts = gpx.fit(x, np.sin(x), "approx=committee", *options, folder=tmp_path / "experts")
    assert not (experts.folder / "figures" / "sampled_functions.png").exists()
    assert "note: no figure of sampled functions: " in capsys.readouterr().err
