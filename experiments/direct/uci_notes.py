"""Notes of the tables of ``uci_tables.py``."""

NOTES = [
    "Published: Evans thesis, tables 7.1 (mean field by L-BFGS; REPARAM; mixture of five by "
    "sampled gradients) and 7.2 (mixture of five by the entropy bound). Sets with more than 20,000 "
    "rows are shown if available, but do not count in the checks.",
    "Column 'within': the mean RMSE exceeds the published one by at most max(15 %, one published "
    "standard deviation). Zeros: expected share of zero weights in a draw. MNLP is of standardised "
    "targets.",
    "'As published' is the interpretation that reproduces the figures, because the source states "
    "neither the rows to which the kernel is fitted nor the prior variance. (1) One exact Gaussian "
    "process per set is fitted to min(n, 1000) of all its rows, test rows included, at the largest "
    "evidence of three searches from lengthscales of 1, 3 and 10. (2) The prior standard deviation "
    "of the function is the fitted signal variance, not its square root, so the values of the "
    "weights extend to three times the variance. (3) One L-BFGS search from the prior.",
    "Evidence for (1): with kernels of training rows an exact Gaussian process has RMSE 0.70, "
    "0.205 and 0.44 over the ten folds of challenger, fertility and hardware; with kernels of the "
    "whole set 0.52 to 0.54, 0.160 and 0.406; published are 0.523, 0.159 and 0.401. Evidence for "
    "(2): the second table; the share of zeros rises where the variance is above one (concrete, "
    "pendulum, stock) and falls where it is below. Raw inputs or targets, modes instead of shares, "
    "or another prior scale fit no two of hardware, automobile and servo. This interpretation "
    "makes errors too small, since test targets influence the kernel; approx=direct does not do "
    "this.",
    "Three searches are needed: from lengthscales of one alone, some sets end at a lower maximum "
    "of the evidence and mostly further from the published figures. Cancer (-1.279 instead of "
    "-1.111 nats a row) then has RMSE 27.8 and 17.6 % of zeros, energy (1.401 instead of 1.489) "
    "1.63 and 94.8 %, housing RMSE 2.01; automobile has 40 % of zeros and hardware 43 %. The "
    "evidences of all searches are in whole_set_kernels.jsonl.",
    "The remaining differences depend on the maximum that is reached or on the random rows. gas "
    "(128 inputs): the section on gas shows eight draws of rows, whose kernels give errors above "
    "and below the published one. wine: a kernel without noise has a larger evidence (-0.37 "
    "instead of -0.66) but a larger RMSE of the exact Gaussian process (0.54 instead of 0.46). "
    "airfoil: another 1,000 rows give 47 % of zeros.",
    "'Kernels of training rows': fitted to the training rows of a fold, standard deviation the "
    "root of the variance, search with restarts from the prior. Gaussian weights: exact posterior "
    "on the same functions under a Gaussian prior. SGPR: up to 200 inducing points, 60 "
    "evaluations. Linear, 5-nn and trivial (mean of the training targets) are baselines. REPARAM: "
    "a Gaussian q over the same weights by sampled gradients, on the folds it was run on; its "
    "optimiser is not published (here Adam, at the better of two rates on a tenth of the training "
    "rows), and predictions are by the mean of q (published: by 1,000 draws). 'One "
    "lengthscale': init=parsimonious. 'Noise of one': another maximum of the evidence.",
    "'Gain of one more sweep': increase of the bound by one more sweep of coordinate "
    "ascent. 'Optimisation': "
    "wall-clock seconds of the L-BFGS evaluations on a shared machine. 'Seconds a fold': processor "
    "seconds of one thread, with predictions and the fit of the kernel. Mixtures by the entropy "
    "bound: at most 200 evaluations; they start around the mean field of one search as published, "
    "with kernels of training rows around that of coordinate ascent. Mixtures by sampled "
    "entropies: the same start, 3,000 draws a step as published, 150 steps of Adam (number and "
    "rate are not published), the bound a mean of 9,000 draws. 'Perturbation': standard deviation "
    "of the logits about the mean field at the start, which is not published either. Of several "
    "settings of a fold the one with the largest bound is shown; test rows are not looked at.",
    "Searches: the published one is L-BFGS from the prior. The default of approx=direct starts "
    "from an annealed precision and reaches a bound that is higher by hundreds to hundreds of "
    "thousands of nats on coarse grids, with smaller errors and fewer zeros: some of the published "
    "zeros come from a search that stopped at corners of the softmax.",
    "Mixtures started at such corners hardly move, because their gradient vanishes. Perturbations "
    "of one and three standard deviations in place of 0.1 raise the bound on none of eight sets by "
    "a nat, and make that of the entropy useless where many weights are not at corners (stock; "
    "table of several settings). The published mixtures do differ from the published mean field "
    "(energy 3.12 and 2.91, mean field 3.27); how they were started and at which rate is not "
    "stated. Sampled mixtures end below the mean field that they contain, by less at a smaller "
    "rate (challenger, same table): the draws of the entropy keep Adam from converging.",
]

OUTSIDE = {
    "gas": (
        "the evidence of its kernel has many maxima, which give RMSEs from 0.17 to 0.48, and the "
        "source states neither rows nor start; see the section on gas"
    ),
    "yacht": (
        "only the worst fold is run, where the mean field has RMSE 0.414 (0.259 over ten folds)"
    ),
}
"""Sets outside the published errors, and the known reasons."""
