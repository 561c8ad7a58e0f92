# The image of a node and of the command line: `docker build -t tidemark .`
# Stage one builds a virtual environment. Stage two has only that, and runs as a user without rights.
FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /opt/tidemark
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY tidemark tidemark
COPY commitlog commitlog
COPY snapshot snapshot
COPY quorum quorum
COPY tiering tiering
COPY coordinator coordinator
COPY node node
COPY pyspark_tidemark pyspark_tidemark
RUN /opt/tidemark/bin/pip install --no-cache-dir -c constraints.txt ".[server]" \
    && /opt/tidemark/bin/python -P -c "from tidemark.records.arrow import warm_up; warm_up()"

FROM python:3.13-slim
RUN groupadd --gid 10001 tidemark \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin tidemark \
    && install -d -o 10001 -g 10001 /var/lib/tidemark /run/tidemark
COPY --from=build /opt/tidemark /opt/tidemark
# Kernels that the first stage compiled are copied to /tmp at the first start: the root file system is
# read-only in a pod. -P above: beside the installed files, not beside those of /src.
ENV PATH=/opt/tidemark/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/tmp/numba
USER 10001:10001
WORKDIR /var/lib/tidemark
VOLUME /var/lib/tidemark
EXPOSE 9092 9093
ENTRYPOINT ["tidemark"]
