# A container that runs `nearfar serve`. See docs/guides/production.md.
#
#   docker build -t nearfar .
#   docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#       -e NEARFAR_TOKEN -v "$PWD/runs/mine:/data/run" -v "$PWD/my_images:$PWD/my_images:ro" -p 127.0.0.1:8000:8000 nearfar

FROM python:3.12-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/nearfar
ENV PATH=/opt/nearfar/bin:$PATH
WORKDIR /build
# Install torch first and from its own index, so that this layer is cached and has no CUDA packages. For a GPU, pass
# --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 and run the container with --gpus all.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt ./
RUN pip install --index-url "$TORCH_INDEX" torch==2.13.0
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN pip install -c constraints.txt ".[web,pretrained]"

FROM python:3.12-slim
RUN groupadd --gid 10001 nearfar && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp nearfar
COPY --from=build /opt/nearfar /opt/nearfar
# The root file system can be read-only: nearfar writes only to /tmp and to the run directory.
ENV PATH=/opt/nearfar/bin:$PATH \
    HOME=/tmp \
    NEARFAR_CACHE=/tmp/nearfar \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=5)"]
ENTRYPOINT ["nearfar"]
CMD ["serve", "/data/run", "--host", "0.0.0.0", "--port", "8000"]
