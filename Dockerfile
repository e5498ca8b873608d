# One image for scheduler, servers and workers; docker-compose.yml runs a job with it.
FROM python:3.11-slim

# what MXNet's library needs that it does not bring along
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 libquadmath0 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /autobyte
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY ps ps
COPY scheduler scheduler
COPY tuner tuner
RUN pip install --no-cache-dir ".[mxnet]"
COPY examples examples

# With a home for what MXNet and scikit-learn download, and a working directory for states and event files.
RUN useradd --create-home autobyte && chown autobyte .
USER autobyte
CMD ["autobyte-launch", "--help"]
