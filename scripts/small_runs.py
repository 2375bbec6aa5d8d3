"""Small runs of every approximation and its main variants: name -> command-line options."""

from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "tests" / "conformance" / "outputs.csv"
OUTPUTS = f"data=csv data.path={TABLE} data.target=[zinc,lead]"
ARM = "data=robot_arm data.num_points=600"
LEARNED = "approx=reweighted inference=type2 approx.priors=null"
GRID = "approx=grid data=grid_stress data.field=rastrigin data.shape=[12,12] trainer.max_steps=3"
ITERATIVE = "approx=exact approx.solver=iterative"
RUNS = {
    "exact": f"{ARM} approx=exact",
    "exact iterative": f"{ARM} {ITERATIVE} approx.iterative.rank=20",
    "exact float32 products": f"{ARM} {ITERATIVE} approx.iterative.product_dtype=float32",
    "exact barely biased": f"{ARM} approx=exact approx.solver=barely_biased",
    "exact grief preconditioner": (
        f"{ARM} {ITERATIVE} approx.iterative.preconditioner=grief approx.iterative.rank=20"
    ),
    "exact left out": f"{ARM} approx=exact objective=loo",
    "coregional": f"{OUTPUTS} approx=coregional",
    "coregional of two latents": f"{OUTPUTS} approx=coregional approx.num_latents=2 approx.rank=1",
    "coregional of terms": (
        f"{OUTPUTS} approx=coregional approx.num_latents=terms kernel=rbf+linear"
    ),
    "derivatives": f"{OUTPUTS} approx=derivatives approx.with_respect_to=[x1]",
    "independent": f"{OUTPUTS} approx=independent",
    "independent sum of kernels": f"{OUTPUTS} approx=independent kernel=rbf+linear",
    "svgp outputs": f"{OUTPUTS} approx=svgp likelihood=gaussian_outputs approx.num_inducing=20",
    "svgp mixed outputs": f"{OUTPUTS} approx=svgp likelihood=mixed_outputs approx.num_inducing=20",
    "svgp varying noise": f"{ARM} approx=svgp likelihood=heteroscedastic approx.num_inducing=20",
    "svgp order": (
        "data=digits data.train_size=200 approx=svgp likelihood=ordinal approx.num_inducing=20"
    ),
    "sgpr": f"{ARM} approx=sgpr approx.num_inducing=20 trainer.certify=true",
    "svgp many inducing points": f"{ARM} approx=svgp approx.num_inducing=300",
    "sgpr sampled points": f"{ARM} approx=sgpr approx.num_inducing=20 selector=rpcholesky",
    "sgpr auto": "data=toy1d approx=sgpr inducing=auto trainer.max_steps=4",
    "sgpr eigenfunctions": "data=toy1d approx=sgpr inducing=eigenfunctions",
    "cglb": f"{ARM} approx=cglb approx.num_inducing=20",
    "cglb restarts": (
        f"{ARM} approx=cglb approx.num_inducing=5 objective.solver.restart_every=2 "
        "approx.solver.restart_every=2"
    ),
    "cglb stored matrix": (
        f"{ARM} approx=cglb approx.num_inducing=20 objective.solver.product_dtype=float64 "
        "objective.log_determinant=preconditioned_trace"
    ),
    "cglb lanczos": f"{ARM} approx=cglb approx.num_inducing=20 approx.variance=lanczos",
    "svgp": f"{ARM} approx=svgp approx.num_inducing=20",
    "svgp sampled": f"{ARM} approx=svgp objective=sampled_elbo approx.num_inducing=20",
    "svgp predictive": f"{ARM} approx=svgp objective=predictive approx.num_inducing=20",
    "svgp classes": f"{ARM} approx=svgp approx.num_inducing=20 likelihood=student_t",
    "qsgp": f"{ARM} approx=qsgp approx.num_basis=400 approx.block_columns=100",
    "qsgp stochastic": (
        f"{ARM} approx=qsgp optimizer=qsgp approx.num_basis=400 approx.warm_start_size=100"
    ),
    "qsgp sites": f"{ARM} approx=qsgp likelihood=laplace approx.num_basis=400",
    "qsgp_inducing": f"{ARM} approx=qsgp_inducing approx.rank=50",
    "qsrvm": f"{ARM} approx=qsrvm approx.sweeps=10",
    "grid": f"{GRID} data.gap_share=0.0",
    "grid fill": f"{GRID} data.gap_share=0.3 grid.gaps=fill",
    "grid fill with eigenpairs, sampled variances": (
        f"{GRID} data.gap_share=0.3 grid.gaps=fill approx.solver.precondition_rank=20 "
        "approx.variance=sampled"
    ),
    "grid ignore": f"{GRID} data.gap_share=0.3 grid.gaps=ignore",
    "grid penalize": f"{GRID} data.gap_share=0.3 grid.gaps=penalize",
    "grid ignore within a small memory": (
        f"{GRID} data.gap_share=0.3 grid.gaps=ignore approx.solver.precondition_rank=200 "
        "data.shape=[36,36] trainer.memory_budget=1MiB"
    ),
    "grid gcv": f"{GRID} data.gap_share=0.3 objective=gcv kernel.outputscale=null",
    "grid gcv probes": (
        f"{GRID} data.gap_share=0.3 objective=gcv objective.trace=hutchinson "
        "kernel.outputscale=null"
    ),
    "grid dense log-determinant": f"{GRID} data.gap_share=0.3 objective.logdet=dense",
    "grid slq ignore": (f"{GRID} data.gap_share=0.3 grid.gaps=ignore objective.logdet=slq_ignore"),
    "grid variances by solves": (
        f"{GRID} data.gap_share=0.3 approx.variance=fill objective.bracket=true"
    ),
    "grid variances ignoring gaps": (
        f"{GRID} data.gap_share=0.3 grid.gaps=ignore approx.variance=ignore"
    ),
    "grid slq": f"{GRID} data.gap_share=0.3 objective.logdet=slq_fill",
    "grid nystrom": f"{GRID} data.gap_share=0.3 objective.logdet=nystrom",
    "grid circle": f"{GRID} data.gap_share=0.2 approx.fft_points=10",
    "ski": "data=toy1d approx=ski",
    "ski chebyshev": "data=toy1d approx=ski objective.logdet=chebyshev",
    "ski circulant": "data=toy1d approx=ski objective.logdet=circulant objective.circulant=chan",
    "swsgp": f"{ARM} approx=swsgp approx.num_inducing=60 approx.num_neighbours=8",
    "vnngp": f"{ARM} approx=vnngp approx.num_neighbours=8",
    "vecchia": f"{ARM} approx=vecchia",
    "deep_rf": f"{ARM} approx=deep_rf approx.num_features=40 approx.predict_samples=3",
    "dkl": f"{ARM} approx=dkl approx.pretrain_steps=20 approx.num_inducing=40",
    "svdkl": f"{ARM} approx=svdkl approx.pretrain_steps=20",
    "deep_svgp": f"{ARM} approx=deep_svgp approx.num_inducing=40",
    "deep_svgp predictive": f"{ARM} approx=deep_svgp objective=predictive approx.num_inducing=40",
    "gpdnn": "data=digits data.train_size=200 approx=gpdnn approx.pretrain_steps=20",
    "conv_gp": "data=digits data.train_size=200 approx=conv_gp",
    "glyphs": "data=glyphs data.num_images=200 approx=cnn",
    "fields": "data=fields data.num_images=200 data.side=8 approx=cnn",
    "resnet": "data=digits data.train_size=200 approx=cnn approx.backbone=resnet",
    "alexnet": "data=digits data.train_size=100 approx=cnn approx.backbone=alexnet",
    "cnn": "data=digits data.train_size=200 approx=cnn",
    "cnn_rf": "data=digits data.train_size=200 approx=cnn_rf",
    "cnn_sorf": "data=digits data.train_size=200 approx=cnn_sorf",
    "deep_rf structured": f"{ARM} approx=deep_rf approx.directions=structured",
    "ski linear": "data=toy1d approx=ski approx.interpolation=linear",
    "ski two inputs": (
        "approx=ski data=grid_stress data.field=rastrigin data.shape=[20,20] "
        "data.gap_share=0.2 approx.grid_size=24"
    ),
    "ski two inputs of a kernel that does not factor": (
        "approx=ski data=grid_stress data.field=rastrigin data.shape=[20,20] "
        "data.gap_share=0.2 approx.grid_size=24 kernel=matern32"
    ),
    "ssgp": f"{ARM} approx=ssgp approx.num_basis=20 approx.draws=2",
    "direct": f"{ARM} approx=direct approx.num_basis=40",
    "direct mixture": f"{ARM} approx=direct_mixture approx.num_basis=40 trainer.max_steps=20",
    "direct mixture sampled": (
        f"{ARM} approx=direct_mixture objective=direct_sampled_elbo optimizer=adam "
        "approx.num_basis=40 trainer.max_steps=20"
    ),
    "direct network": f"{ARM} approx=direct_network trainer.max_steps=20",
    "direct logistic": (
        "data=banana approx=direct_logistic approx.num_basis=40 "
        "approx.weights.widths=[0.3,1.0] trainer.max_steps=20"
    ),
    "direct ascent": f"{ARM} approx=direct optimizer=coordinate_ascent approx.num_basis=40",
    "vssgp": f"{ARM} approx=vssgp approx.num_basis=20 approx.draws=2",
    "exact residual per row": (
        f"{ARM} {ITERATIVE} approx.iterative.variance=exact objective=iterative_mll "
        "objective.criterion=residual_per_row objective.kind_of_probes=gaussian"
    ),
    "laplace": "data=banana approx=laplace",
    "ep": "data=banana approx=ep",
    "vgp": "data=banana approx=vgp",
    "elliptical_slice": (
        "data=banana approx=elliptical_slice optimizer.chains=2 optimizer.burn_in=5 "
        "optimizer.iterations=8 trainer.max_steps=30"
    ),
    "fully_bayesian": (
        f"{ARM} approx=fully_bayesian optimizer.chains=2 optimizer.burn_in=5 "
        "optimizer.iterations=8 optimizer.thin=2 trainer.max_steps=30"
    ),
    "fully_bayesian_sgpr": (
        f"{ARM} approx=fully_bayesian_sgpr optimizer.chains=2 optimizer.burn_in=5 "
        "optimizer.iterations=8 optimizer.thin=2 trainer.max_steps=30"
    ),
    "qsgp eigenfunctions": f"{ARM} approx=qsgp basis=grief approx.num_basis=100",
    "exact arc-cosine": f"{ARM} approx=exact kernel=arc_cosine",
    "exact matern_nu": f"{ARM} approx=exact kernel=matern_nu",
    "qsgp fastfood": f"{ARM} approx=qsgp basis=fastfood approx.num_basis=400",
    "qsgp arc-cosine": f"{ARM} approx=qsgp kernel=arc_cosine basis=arc_cosine approx.num_basis=400",
    "committee": f"{ARM} approx=committee approx.num_experts=4 approx.rule=grbcm",
    "local experts": f"{ARM} approx=local_experts approx.num_experts=4",
    "transductive": f"{ARM} approx=transductive approx.num_experts=4",
    "mixture of experts": f"{ARM} approx=mixture_of_experts approx.num_experts=3",
    "svgp eigenfunctions": "data=toy1d approx=svgp inducing=eigenfunctions",
    "grief": f"{ARM} approx=grief approx.num_eigenfunctions=40",
    "reweighted": (
        f"{ARM} approx=reweighted approx.num_basis=40 optimizer.burn_in=10 "
        "optimizer.iterations=20 optimizer.thin=5 trainer.max_steps=30"
    ),
    "reweighted type2": f"{ARM} approx=reweighted inference=type2 approx.num_basis=40",
    "reweighted laplacian": f"data=toy1d {LEARNED} basis=laplacian approx.num_basis=40",
    "reweighted ski": f"data=toy1d {LEARNED} basis=ski approx.num_basis=40",
    "reweighted orthogonal": (
        f"{ARM} approx=reweighted inference=type2 approx.structure=orthogonal approx.num_basis=40"
    ),
    "reweighted householder": (
        f"{ARM} approx=reweighted approx.structure=householder approx.num_basis=20 "
        "optimizer.burn_in=10 optimizer.iterations=20 optimizer.thin=5 trainer.max_steps=30"
    ),
    "reweighted relevance": (
        f"{ARM} approx=reweighted inference=relevance_vectors approx.priors=null "
        "approx.num_basis=40"
    ),
    "auto": f"{ARM} approx=auto",
    "sod": f"{ARM} approx=sod approx.num_points=80",
    "sod by information": f"{ARM} approx=sod approx.num_points=80 selector=ivm",
    "sor": f"{ARM} approx=sor approx.num_inducing=20",
    "dtc": f"{ARM} approx=dtc approx.num_inducing=20",
    "fitc": f"{ARM} approx=fitc approx.num_inducing=20",
    "fic": f"{ARM} approx=fic approx.num_inducing=20",
    "pitc": f"{ARM} approx=pitc approx.num_inducing=20",
    "pic": f"{ARM} approx=pic approx.num_inducing=20 partition=clusters",
    "exact cholesky": f"{ARM} approx=exact approx.solver=cholesky mean=linear",
    "exact conformal": f"{ARM} approx=exact kernel=rbf+linear calibrate=conformal",
    "exact subset variance": f"{ARM} {ITERATIVE} approx.iterative.variance=subset",
    "exact sgpr variance": f"{ARM} {ITERATIVE} approx.iterative.variance=sgpr",
    "exact nystrom variance": f"{ARM} {ITERATIVE} approx.iterative.variance=nystrom",
    "exact within a small memory": f"{ARM} {ITERATIVE} trainer.memory_budget=1MiB",
    "barely biased within a small memory": (
        f"{ARM} approx=exact approx.solver=barely_biased trainer.memory_budget=1MiB"
    ),
    "exact sum of products": f"{ARM} {ITERATIVE} kernel=rbf*periodic+2*linear(active_dims=[0])",
    "exact wendland": f"{ARM} {ITERATIVE} kernel=wendland",
    "exact warped": f"{ARM} approx=exact kernel=warped",
    "exact product": f"{ARM} approx=exact kernel=product_matern32",
    "exact spectral mixture": "data=toy1d approx=exact kernel=spectral_mixture",
    "exact starts": f"{ARM} approx=exact init=starts prior=lognormal",
    "exact parsimonious": f"{ARM} approx=exact init=parsimonious",
    "exact constants": f"{ARM} approx=exact init=constants prior=dimension_scaled",
    "exact neighbours": f"{ARM} approx=exact init=neighbours calibrate=variance",
    "sgpr reinitialised": (
        f"{ARM} approx=sgpr approx.num_inducing=20 approx.reinitialise=1 selector=greedy"
    ),
    "sgpr dpp": f"{ARM} approx=sgpr approx.num_inducing=20 selector=dpp",
    "sgpr rls": f"{ARM} approx=sgpr approx.num_inducing=20 selector=rls",
    "sgpr adaptive rls": f"{ARM} approx=sgpr approx.num_inducing=20 selector=rls_adaptive",
    "cglb exact variance": f"{ARM} approx=cglb approx.num_inducing=20 approx.variance=exact",
    "svgp by Adam": f"{ARM} approx=svgp approx.num_inducing=20 optimizer=svgp",
    "svgp mean field": (
        f"{ARM} approx=svgp approx.num_inducing=20 family=mean_field strategy=unwhitened "
        "approx.refit=false"
    ),
    "svgp digits": "data=digits data.train_size=200 approx=svgp likelihood=softmax "
    "approx.num_inducing=20 calibrate=temperature",
    "svgp banana": "data=banana approx=svgp likelihood=bernoulli approx.num_inducing=20",
    "laplace several classes": "data=digits data.train_size=200 approx=laplace likelihood=softmax",
    "ep iterative": "data=banana approx=ep likelihood=bernoulli calibrate=platt",
    "qsgp chevron": (
        f"{ARM} approx=qsgp optimizer=qsgp approx.num_basis=400 approx.covariance=chevron "
        "approx.num_dense=20 basis=orthogonal"
    ),
    "qsgp full": (
        f"{ARM} approx=qsgp optimizer=qsgp_paper approx.num_basis=100 approx.covariance=full "
        "basis=quasi_monte_carlo"
    ),
    "qsgp mean field": (
        f"{ARM} approx=qsgp optimizer=qsgp approx.num_basis=100 approx.covariance=mean_field "
        "basis=structured_orthogonal"
    ),
    "qsgp stochastic blocks": (
        f"{ARM} approx=qsgp optimizer=qsgp_stochastic_blocks approx.num_basis=400 "
        "approx.block_columns=100 optimizer.rows=200"
    ),
    "qsgp gauss-hermite": "data=toy1d approx=qsgp basis=gauss_hermite approx.num_basis=64",
    "qsgp classes": "data=banana approx=qsgp likelihood=bernoulli approx.num_basis=200",
    "qsgp_inducing paper": f"{ARM} approx=qsgp_inducing optimizer=qsgp_inducing_paper",
    "qsgp_inducing collapsed": f"{ARM} approx=qsgp_inducing approx.variance=collapsed",
    "qsrvm stochastic": f"{ARM} approx=qsrvm optimizer=qsrvm_stochastic approx.sweeps=0",
    "grid dense": f"{GRID} data.gap_share=0.3 approx.variance=dense",
    "grid rank reduced": f"{GRID} data.gap_share=0.3 approx.variance=rank_reduced",
    "grid kernel factors": f"{GRID} data.gap_share=0.3 kernel=product_matern52",
    "ski kmeans": "data=toy1d approx=ski approx.grid=kmeans approx.interpolation=linear",
    "ski inverse distance": "data=toy1d approx=ski approx.interpolation=inverse_distance",
    "ski variances": "data=toy1d approx=ski approx.variance=quadratic_form approx.outside=clamp",
    "ski sampled variances": "data=toy1d approx=ski approx.variance=stochastic",
    "ski diagonal variances": "data=toy1d approx=ski approx.variance=diagonal",
    "ski additive": f"{ARM} approx=ski projection=additive",
    "ski projected": f"{ARM} approx=ski projection=orthonormal",
    "ski network": f"{ARM} approx=ski projection=network",
    "vecchia by rows": f"{ARM} approx=vecchia approx.block_size=1 mean=zero",
    "reweighted importance": (f"{ARM} {LEARNED} basis=importance_weighted approx.num_basis=40"),
    "reweighted dictionary": f"{ARM} {LEARNED} basis=dictionary approx.num_basis=40",
    "grief corrected": (
        f"{ARM} approx=grief approx.num_eigenfunctions=40 approx.correction=true "
        "approx.reselect=1 approx.grid.kind=quantile"
    ),
    "committee poe": f"{ARM} approx=committee approx.num_experts=4 approx.rule=poe",
    "cnn_mcd": "data=digits data.train_size=200 approx=cnn_mcd calibrate=isotonic",
    "cnn_deep_rf": "data=digits data.train_size=200 approx=cnn_deep_rf",
    "deep_rf learned": (
        f"{ARM} approx=deep_rf approx.num_features=40 approx.frequencies=learned "
        "approx.covariance=full approx.directions=orthogonal approx.predict_samples=3"
    ),
    "ski tyrtyshnikov": (
        "data=toy1d approx=ski objective.logdet=circulant objective.circulant=tyrtyshnikov"
    ),
    "ski whittle": "data=toy1d approx=ski objective.logdet=circulant",
    "ski strang": "data=toy1d approx=ski objective.logdet=circulant objective.circulant=strang",
    "ski eigenvalues": "data=toy1d approx=ski objective.logdet=eigenvalues",
}
