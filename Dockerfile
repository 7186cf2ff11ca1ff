# The server as a container, for Linux: MLX's CPU build, or its CUDA build. On a Mac a container does not see Metal.
#   docker build -t reprise .                                                     the CPU build
#   docker build -t reprise --build-arg BACKEND=cuda .                            NVIDIA's cards; run it with --gpus all
#   docker run --rm -p 127.0.0.1:8000:8000 -e REPRISE_API_KEY=KEY reprise         the bundled model
#   docker run ... -v reprise-models:/models -v reprise-cache:/cache reprise serve smollm2
# It listens on every address of the container. So it demands a key, or --insecure if the port is open to you alone.
FROM python:3.13-slim-bookworm AS build

RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.9
WORKDIR /build
COPY requirements.lock requirements-cuda.lock pyproject.toml README.md LICENSE NOTICE ./
COPY bench bench
COPY cli cli
COPY config config
COPY demo_model demo_model
COPY drafters drafters
COPY engine engine
COPY server server
COPY reprise reprise

# uv checks the lock's hashes of everything that Reprise asks for; pip cannot, of constraints.
RUN uv venv --python python3 --no-python-downloads /opt/reprise \
    && uv pip install --no-cache --compile-bytecode --python /opt/reprise/bin/python \
        --constraint requirements.lock --build-constraint requirements.lock .

# Both builds install the same libmlx.so, so the CPU build has to be removed first.
ARG BACKEND=cpu
RUN if [ "$BACKEND" = cuda ]; then \
        uv pip uninstall --python /opt/reprise/bin/python mlx-cpu \
        && uv pip install --no-cache --no-deps --require-hashes --python /opt/reprise/bin/python -r requirements-cuda.lock; \
    fi

FROM python:3.13-slim-bookworm

# models: what is downloaded from the hub, and folders of your own. cache: learned costs, prompts, converted models.
RUN useradd --uid 10001 --create-home reprise && install --directory --owner=reprise /models /cache
COPY --from=build /opt/reprise /opt/reprise
ENV PATH=/opt/reprise/bin:$PATH HF_HOME=/models XDG_CACHE_HOME=/cache REPRISE_HOST=0.0.0.0 REPRISE_PORT=8000
USER reprise
WORKDIR /models
VOLUME ["/models", "/cache"]
EXPOSE 8000
# Unhealthy while the model loads, too; that does not count for the first half hour, which may bring a download.
HEALTHCHECK --start-period=30m --timeout=10s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=9)"]
ENTRYPOINT ["reprise"]
CMD ["serve"]
