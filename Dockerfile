# The service with everything that requirements/runtime.txt pins, and nothing else.
#
#   docker build -t bearings .
#   docker run --rm bearings --help

FROM python:3.11-slim AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/bearings
WORKDIR /srv/bearings

# First what changes seldom, so that a change of the code does not install everything again.
COPY requirements/runtime.txt requirements/runtime.txt
RUN /opt/bearings/bin/pip install --require-hashes -r requirements/runtime.txt

# Installed in place: the migrations stand beside the package and are not part of it.
COPY pyproject.toml README.md alembic.ini ./
COPY app app
COPY migrations migrations
RUN /opt/bearings/bin/pip install --no-build-isolation --no-deps -e . \
 && /opt/bearings/bin/python -m compileall -q app


FROM python:3.11-slim

ENV PATH=/opt/bearings/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    BEARINGS_LOG_FORMAT=json BEARINGS_DATA_DIR=/var/lib/bearings
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/bearings --create-home bearings
COPY --from=build /opt/bearings /opt/bearings
COPY --from=build /srv/bearings /srv/bearings

USER bearings
WORKDIR /srv/bearings
EXPOSE 8000
# Ready when the database answers. The migrations run at start, so the first check may take a moment.
HEALTHCHECK --interval=5s --timeout=4s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('BEARINGS_PORT', '8000') + '/readyz', timeout=3)"]
# In exec form, so that SIGTERM reaches the service: it gives its sessions back and ends with 0.
ENTRYPOINT ["bearings"]
CMD ["serve", "--no-tour"]
