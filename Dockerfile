# docker build --target cpu -t offpolicy:cpu .      docker run --rm -v "$PWD/runs:/work/runs" offpolicy:cpu train algo=sac
# docker build --target cuda -t offpolicy:cuda .    docker run --rm --gpus all --shm-size=2g offpolicy:cuda doctor
# The CUDA libraries come with torch from PyPI, so both targets begin alike; a host with NVIDIA's container toolkit gives
# the driver. x86-64 only (docs/install.md).
FROM python:3.12-slim-bookworm AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY offpolicy offpolicy
COPY runners runners
COPY conf conf
RUN pip wheel --no-cache-dir --no-deps -c constraints.txt --wheel-dir /dist .

FROM python:3.12-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 MUJOCO_GL=egl
# What draws pictures without a display, for `offpolicy play --video`.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libegl1 libgl1 libgles2 libglvnd0 libgl1-mesa-dri \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 offpolicy \
    && install -d -o offpolicy -g offpolicy /work
COPY constraints.txt /opt/constraints.txt
WORKDIR /work
ENTRYPOINT ["offpolicy"]
CMD ["--help"]

FROM base AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir -c /opt/constraints.txt "/dist/"*.whl
USER 1000

FROM base AS cpu
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir -c /opt/constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu \
    "torch==$(sed -n 's/^torch==//p' /opt/constraints.txt)+cpu" "/dist/"*.whl
USER 1000
