# bstar as a container: one image for brokers, workers and clients; the entry point is the `bstar` command.
#
#   docker build -t bstar .
#   docker run --rm bstar version
#
# It runs as user 10001 and writes to /var/lib/bstar only (state_dir), so the root may be read-only. Needs nothing
# but its base image and, while it is built, a package index; which one, pip's own configuration in BUILD_IMAGE says.

# Any image with Python 3.11 or newer as python3. The venv refers to its interpreter, so both must have the same one.
ARG BASE_IMAGE=python:3.12-slim
ARG BUILD_IMAGE

FROM ${BUILD_IMAGE:-${BASE_IMAGE}} AS build
WORKDIR /src
RUN python3 -m venv /opt/bstar
# Dependencies change less often than the program: their layer is kept until they do.
COPY constraints.txt ./
RUN /opt/bstar/bin/pip install --disable-pip-version-check --no-input --no-cache-dir --constraint constraints.txt \
    pyzmq msgspec transitions PyYAML prometheus-client typer rich cronsim tzdata starlette uvicorn h11 websockets jsonschema
COPY . .
RUN /opt/bstar/bin/pip install --disable-pip-version-check --no-input --no-cache-dir --constraint constraints.txt '.[http,schema]' \
 && /opt/bstar/bin/pip check \
 && /opt/bstar/bin/pip uninstall --yes pip setuptools

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="bstar" \
      org.opencontainers.image.description="Two Majordomo brokers that stand in for each other, their clients and workers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The bstar authors"
# A fixed number, so that volumes and policies can name it. A new volume takes over the folder's owner. The service
# "keys" of docker-compose.yml writes to the last three.
RUN groupadd --gid 10001 bstar \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/bstar --shell /usr/sbin/nologin bstar \
 && install -d -o bstar -g bstar -m 0750 /var/lib/bstar /var/lib/bstar/journal /var/lib/bstar/store \
 && install -d -o bstar -g bstar -m 0700 /keys /worker-keys /load-keys
COPY --from=build /opt/bstar /opt/bstar
ENV PATH=/opt/bstar/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/bstar
# Clients and workers, the state for the peer, HTTP: as the configurations in configs/ for compose say.
EXPOSE 5001 5003 9401
# SIGTERM hands the role over: give the container longer to stop than timing.drain_timeout_s.
STOPSIGNAL SIGTERM
# For `bstar serve`. Liveness only: /healthz never depends on the peer. Switch it off for other commands.
ENV HEALTH_URL=http://127.0.0.1:9401/healthz
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['HEALTH_URL'], timeout=2)"]
ENTRYPOINT ["bstar"]
CMD ["--help"]
