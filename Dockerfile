# docker build --build-arg REVISION=$(git rev-parse HEAD) -t phasewatch .
# docker run -p 127.0.0.1:9321:9321 -e VLLM_TARGETS=http://vllm-0:8000,http://vllm-1:8000 phasewatch
# docker run -p 127.0.0.1:9321:9321 -v ./phasewatch.yml:/etc/phasewatch/phasewatch.yml:ro phasewatch
# docker run -v ./out:/out -u $(id -u) phasewatch export all --out /out
#
# The base image is named by tag: its digest could not be looked up where this was written; pin it where you build.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# Dependencies come first, so that a change of the source does not fetch them again.
COPY requirements/runtime.txt requirements/build.txt requirements/
RUN python -m venv /opt/phasewatch && \
    /opt/phasewatch/bin/python -m pip install --no-cache-dir --require-hashes -r requirements/runtime.txt && \
    python -m venv /opt/build && \
    /opt/build/bin/python -m pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY src/ src/
# What `phasewatch export` writes is part of the wheel.
COPY grafana/ grafana/
COPY config/ config/
RUN /opt/build/bin/python -m pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /opt/dist . && \
    /opt/phasewatch/bin/python -m pip install --no-cache-dir --no-deps /opt/dist/*.whl
# What a mounted configuration replaces; with this one the targets come from VLLM_TARGETS.
RUN mkdir -p /opt/etc && echo "# Targets come from VLLM_TARGETS; mount a configuration here for more." > /opt/etc/phasewatch.yml

FROM python:3.11-slim-bookworm
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="phasewatch" \
      org.opencontainers.image.description="Says which phase of a vLLM fleet is slow, why, and what to change" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/phasewatch /opt/phasewatch
COPY --from=build /opt/etc /etc/phasewatch
ENV PATH=/opt/phasewatch/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, since Kubernetes' runAsNonRoot cannot judge a name.
USER 65532:65532
EXPOSE 9321
STOPSIGNAL SIGTERM
# http.client, since urllib would ask a proxy that the environment names.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/opt/phasewatch/bin/python", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1:9321', timeout=3); c.request('GET', '/-/healthy'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["/opt/phasewatch/bin/phasewatch"]
CMD ["serve", "--config.file=/etc/phasewatch/phasewatch.yml", "--web.listen-address=0.0.0.0:9321"]
