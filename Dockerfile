# The image of a node and of the command line: `docker build -t tidemark .`
# Stage one builds a virtual environment, stage two removes from it and from the system what a node
# never opens, and the image is what is left: a shell, Python and Tidemark, for a user without rights.
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends binutils patchelf
WORKDIR /src
# pip stays outside of the environment that it fills.
RUN python -m venv /pip && python -m venv --without-pip /opt/tidemark
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY tidemark tidemark
COPY commitlog commitlog
COPY snapshot snapshot
COPY quorum quorum
COPY tiering tiering
COPY coordinator coordinator
COPY node node
COPY pyspark_tidemark pyspark_tidemark
RUN /pip/bin/pip --python /opt/tidemark install --no-cache-dir -c constraints.txt ".[server]"
# Tests, headers, sources of C, stubs, and modules that nothing here imports: rich asks for few of
# pygments. Arrow's bindings are linked to libraries of which they use
# nothing.
RUN cd /opt/tidemark/lib/python3*/site-packages \
    && find . -type d \( -name tests -o -name SelfTest -o -name include -o -name __pycache__ \) -prune -exec rm -rf {} + \
    && find . -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.pyi' -o -name '*.c' -o -name '*.h' \
        -o -name '*.a' -o -name '_*tests*.so' -o -name '_simd.*.so' \) -delete \
    && rm -rf numpy/f2py numpy/distutils numba/cuda \
    && find pygments/lexers pygments/styles pygments/formatters -name '*.py' ! -name '_*' ! -name 'default*' \
        ! -name 'special*' ! -name 'python*' -delete \
    && unused=$(cd pyarrow && ls libparquet.so.* libarrow_substrait.so.* libarrow_dataset.so.* libarrow_acero.so.*) \
    && for each in pyarrow/lib.*.so pyarrow/_compute.*.so pyarrow/libarrow_python.so.*; do \
        for one in $unused; do patchelf --remove-needed "$one" "$each"; done; done \
    && (cd pyarrow && rm -rf src $unused libarrow_python.so libarrow_python.so.*.* libarrow_python_* libarrow_flight* libarrow_s3* \
        && find . -maxdepth 1 -name '_*.so' ! -name '_compute.*' -delete) \
    && find . -name '*.so*' -type f ! -path './numpy.libs/*' -exec strip --strip-unneeded {} +
# Kernels are compiled for every processor. numba compares times of files, and a layer keeps whole
# seconds only. -P: beside the installed files, not those of /src.
RUN find /opt/tidemark -name '*.py' -exec touch -d 2025-01-01T00:00:00Z {} + \
    && cd / && /opt/tidemark/bin/python -P -m tidemark.records.kernels.processor \
    && /opt/tidemark/bin/python -P -m compileall -q --invalidation-mode unchecked-hash /opt/tidemark/lib

FROM python:3.13-slim AS system
RUN groupadd --gid 10001 tidemark \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin tidemark \
    && install -d -o 10001 -g 10001 /var/lib/tidemark /run/tidemark
COPY --from=build /opt/tidemark /opt/tidemark
# A shell with its usual tools, Python, and the libraries that these and Tidemark are linked to. libgcc
# is opened by its name.
RUN rm -rf /usr/share/doc /usr/share/man /usr/share/locale /usr/share/info /usr/share/perl* /usr/lib/*/perl* \
        /var/cache/* /var/lib/apt /var/log/* /usr/lib/apt /usr/lib/*/gconv /usr/lib/*/security /usr/include /usr/src \
    && find / -xdev -type d \( -name ensurepip -o -name idlelib -o -name lib2to3 -o -name tkinter -o -name turtledemo \
        -o -name test -o -name pydoc_data -o -name distutils -o -name dbm -o -name sqlite3 -o -name curses \
        -o -name pip -o -name 'pip-*' -o -name 'config-3*' \) -path '*/python3*' ! -path '/opt/*' -prune -exec rm -rf {} + \
    && find / -xdev -type f -path '*/lib-dynload/*' \( -name '_dbm.*' -o -name '_gdbm.*' -o -name 'nis.*' \
        -o -name '_sqlite3.*' -o -name '_curses*' -o -name '_tkinter.*' -o -name '_*test*' -o -name '_crypt.*' \) -delete \
    && find / -xdev -type d -name __pycache__ -path '*/python3*' ! -path '/opt/*' -prune -exec rm -rf {} + \
    && kept=" sh dash bash ldd $(dpkg -L coreutils grep sed findutils hostname | sed -n 's#.*/bin/##p' | tr '\n' ' ') " \
    && for each in /usr/bin/* /usr/sbin/*; do name=${each##*/}; \
        case $name in python*) ;; *) case $kept in *" $name "*) ;; *) rm -rf "$each" ;; esac ;; esac; done \
    && rm -rf /var/lib/dpkg /usr/share/python-wheels \
    && find /usr/bin /usr/local /usr/lib/python3* /opt/tidemark -type f \( -perm -u+x -o -name '*.so*' \) -exec ldd {} + \
        2> /dev/null | sed -n 's#.* => \(/[^ ]*\) .*#\1#p' | sort -u | xargs readlink -f | sort -u > /tmp/linked \
    && find /usr/lib/*-linux-gnu -name '*.so*' -type f ! -name 'ld-*' ! -name 'libgcc_s*' ! -name legacy.so \
        | grep -vxFf /tmp/linked | xargs rm -f \
    && find /usr/lib -xtype l -delete \
    && python -m compileall -q -x site-packages "$(python -c 'import os; print(os.path.dirname(os.__file__))')" \
    && rm -rf /usr/bin/bash /usr/bin/ldd /tmp/*
# Nodes and a client, out of what is left. A failure here is a failure of the build.
RUN cd /tmp && /opt/tidemark/bin/tidemark dev --data-dir /tmp/dev > /tmp/nodes 2>&1 & nodes=$!; said=never; \
    for _ in $(seq 30); do sleep 1; /opt/tidemark/bin/tidemark self-test > /tmp/said 2>&1 && said=well && break; done; \
    kill $nodes; wait $nodes; cat /tmp/said; if [ $said = never ]; then cat /tmp/nodes; exit 1; fi; rm -rf /tmp/*

FROM scratch
COPY --from=system / /
# Kernels are copied to NUMBA_CACHE_DIR at a start, since the root file system of a pod is read-only.
ENV PATH=/opt/tidemark/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/tmp/numba
USER 10001:10001
WORKDIR /var/lib/tidemark
VOLUME /var/lib/tidemark
EXPOSE 9092 9093 9404
ENTRYPOINT ["tidemark"]
