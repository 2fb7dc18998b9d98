# Rollcall alone: one static program, and nothing else. Its configuration is /etc/rollcall/rollcall.toml, or
# ROLLCALL_… variables.
#
#   docker build --build-arg ROLLCALL_COMMIT="$(git rev-parse HEAD)" --tag rollcall:local .
#
# `make digests` pins the image that it is built from to what its tag is now.

FROM rust:1.95.0-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082 AS build
WORKDIR /build
RUN apt-get update && apt-get install -y --no-install-recommends jq musl-tools && rm -rf /var/lib/apt/lists/* \
    && echo "$(uname -m)-unknown-linux-musl" > triple && rustup target add "$(cat triple)"
# The image has the toolchain: with rust-toolchain.toml it would fetch formatter and lints as well.
COPY Cargo.toml Cargo.lock build.rs ./
COPY .cargo .cargo
# The dependencies are built first, without any source of Rollcall: this layer stays until one of these
# files changes. Cargo needs to see the benchmarks, though it does not build them.
RUN mkdir -p src benches \
    && echo 'fn main() {}' | tee src/main.rs benches/main.rs benches/soak.rs benches/quiet.rs > /dev/null \
    && touch src/lib.rs \
    && cargo build --profile dist --locked --target "$(cat triple)" --bin rollcall
COPY benches benches
COPY docs/addresses.toml docs/addresses.toml
COPY src src
ARG ROLLCALL_COMMIT=""
# Copied files keep their times, which may be before that build.
RUN touch src/lib.rs src/main.rs && cargo build --profile dist --locked --target "$(cat triple)" --bin rollcall
COPY .ci/made-of .ci/made-of
COPY .ci/sbom.jq .ci/sbom.jq
COPY LICENSE LICENSE
# The files of the image. An import waits in /tmp while it is checked.
RUN install -D -m 0755 "target/$(cat triple)/dist/rollcall" /image/usr/bin/rollcall \
    && install -d /image/etc/rollcall /image/usr/share/doc/rollcall && install -d -m 1777 /image/tmp \
    && install -m 0644 LICENSE /image/usr/share/doc/rollcall/LICENSE \
    && .ci/made-of /image/usr/share/doc/rollcall "$(cat triple)"

# Roots of trust for TLS and time zones are built into the program. A receiver of the type `exec` needs an image that has its
# program: FROM one, and COPY --from=rollcall /usr/bin/rollcall.
FROM scratch
ARG ROLLCALL_COMMIT=""
LABEL org.opencontainers.image.title="Rollcall" \
    org.opencontainers.image.description="Notices when a device of a fleet goes silent" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.revision="$ROLLCALL_COMMIT"
# addresses
# end of addresses
COPY --from=build /image /
ENV PATH=/usr/bin
# Rollcall reads rollcall.toml in its working directory, if there is one.
WORKDIR /etc/rollcall
# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
EXPOSE 8080
# Whether the process lives: a supervisor that restarts unhealthy containers must not restart Rollcall
# because its broker is away. The command asks the address of the configuration (http.listen).
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["rollcall", "health"]
ENTRYPOINT ["rollcall"]
CMD ["serve"]
