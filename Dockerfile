# syntax=docker/dockerfile:1
# Three images of one project:
#   docker build --target orchestrator -t wsdata-orchestrator:0.1.0 .   Dagster, pools cpu and vault
#   docker build --target gpu          -t wsdata-gpu:0.1.0 .            pools nvdec, vlm, encode; vLLM
#   docker build --target trainer      -t wsdata-trainer:0.1.0 .        the loader, nothing else
# For a build that can be repeated, name the base by digest:
#   --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
# Of the gpu image: any Debian 12 with the same Python at /usr/local. CUDA's libraries come with
# torch's wheels and the driver with the node, so the plain one is enough.
ARG GPU_IMAGE=${PYTHON_IMAGE}

# ---- builder: a compiler, and the project's own wheel ---------------------------------------------
FROM ${PYTHON_IMAGE} AS builder
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# pdqhash is a source package.
RUN apt-get update \
    && apt-get install -y --no-install-recommends "g++=4:12.2.0-*" \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY pyproject.toml README.md ./
COPY wsdata ./wsdata
RUN pip wheel --no-deps --wheel-dir /wheels .
COPY locks ./locks

# ---- one virtual environment per image; it is copied whole, pip stays here -------------------------
FROM builder AS orchestrator-environment
# Where torch comes from: the CPU build is a tenth of the one with CUDA, and nothing here has a GPU.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN python -m venv --without-pip /opt/venv \
    && grep '^torch==' locks/orchestrator.lock > torch.lock \
    && pip --python /opt/venv/bin/python install --no-deps --index-url "${TORCH_INDEX_URL}" -r torch.lock \
    && grep -v '^torch==' locks/orchestrator.lock > others.lock \
    && pip --python /opt/venv/bin/python install --no-deps -r others.lock \
    && pip --python /opt/venv/bin/python install --no-deps /wheels/*.whl

FROM builder AS gpu-environment
RUN python -m venv --without-pip /opt/venv \
    && pip --python /opt/venv/bin/python install --no-deps -r locks/gpu.lock \
    && pip --python /opt/venv/bin/python install --no-deps /wheels/*.whl

FROM builder AS trainer-environment
# With dependencies: torch's CUDA build pins its own. Where a training image has a torch of its own,
# install the wheel and the other lines of the lock there instead.
RUN python -m venv --without-pip /opt/venv \
    && pip --python /opt/venv/bin/python install -r locks/trainer.lock \
    && pip --python /opt/venv/bin/python install --no-deps /wheels/*.whl

# ---- what the finished images share ----------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS base
# One account, without a shell or a folder; its number is what the chart runs pods as.
RUN groupadd --gid 10001 wsdata \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin wsdata \
    && mkdir -p /opt/wsdata/app /opt/wsdata/home /opt/dagster/dagster_home
# Bytecode is made while building: pods have a read-only root, and each would spend four CPU-seconds
# on compiling what definitions.py imports.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /opt/wsdata/app

FROM base AS orchestrator
# The decode sandbox's filter; prints of sound.
RUN apt-get update \
    && apt-get install -y --no-install-recommends "libseccomp2=2.5.4-*" "libchromaprint1=1.5.1-*" \
    && rm -rf /var/lib/apt/lists/*
COPY --from=orchestrator-environment /opt/venv /opt/venv
COPY definitions.py launch.py workspace.yaml ./
COPY assets ./assets
COPY resources ./resources
COPY sensors ./sensors
COPY recipes ./recipes
RUN python -m compileall -q .
ENV PYTHONPATH=/opt/wsdata/app WSDATA_PROJECT=/opt/wsdata/app WSDATA_HOME=/opt/wsdata/home \
    DAGSTER_HOME=/opt/dagster/dagster_home
USER 10001:10001
CMD ["wsdata", "--help"]

# The same folder and files as in the orchestrator: Dagster reloads definitions from the path that a
# run was launched with.
FROM ${GPU_IMAGE} AS gpu
# The one compiler in a finished image: Triton builds its launchers when a kernel is first used.
RUN apt-get update \
    && apt-get install -y --no-install-recommends "libseccomp2=2.5.4-*" "libchromaprint1=1.5.1-*" "gcc=4:12.2.0-*" "libc6-dev=2.36-9+deb12u*" \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 wsdata \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin wsdata \
    && mkdir -p /opt/wsdata/app /opt/wsdata/home /opt/dagster/dagster_home
COPY --from=gpu-environment /opt/venv /opt/venv
COPY --from=orchestrator /opt/wsdata/app /opt/wsdata/app
# video: NVDEC and NVENC.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/opt/wsdata/app WSDATA_PROJECT=/opt/wsdata/app WSDATA_HOME=/opt/wsdata/home \
    DAGSTER_HOME=/opt/dagster/dagster_home \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
WORKDIR /opt/wsdata/app
USER 10001:10001
CMD ["wsdata", "--help"]

# What a training job adds its own code to. No Dagster, no media, no roots of the project.
FROM base AS trainer
COPY --from=trainer-environment /opt/venv /opt/venv
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
CMD ["python", "-c", "import wsdata.loader.dataset; print(wsdata.loader.dataset.__doc__)"]
