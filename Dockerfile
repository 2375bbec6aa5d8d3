# GPU image: docker build -t gpx . && docker run --gpus all -v $PWD/outputs:/gpx/outputs gpx approx=qsgp
# -devel: KeOps and Triton compile kernels and need the headers of CUDA and nvrtc
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv python3-dev g++ git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /gpx
RUN python3 -m venv /venv
ENV PATH=/venv/bin:$PATH MPLBACKEND=Agg
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY configs configs
COPY gpx gpx
RUN pip install --no-cache-dir -c constraints.txt torch==2.13.0 ".[keops,sweep]"
# rarely: the doctor's checks take seconds of a device that training needs for itself; from / it is
# the installed package that is asked, not the source beside it
HEALTHCHECK --interval=24h --timeout=120s --start-period=180s --retries=2 \
    CMD ["sh", "-c", "cd / && python -m gpx.doctor"]
# the other commands: docker run --entrypoint gpx gpx predict ..., diagnose ...
ENTRYPOINT ["gpx", "train"]
