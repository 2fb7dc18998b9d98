# Rollcall alone: one program, no shell of its own to care for, no state. What it watches and where
# it keeps the fleet comes by /etc/rollcall/rollcall.toml or by ROLLCALL_… variables.

FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /build
# The image is the toolchain: rust-toolchain.toml would have it fetch formatter and lints as well.
COPY Cargo.toml Cargo.lock ./
# What Rollcall is made from is built first, with nothing of its own: this layer stays until one of the two
# files changes. Cargo wants to see the benchmarks, though it does not build them.
RUN mkdir -p src benches \
    && echo 'fn main() {}' | tee src/main.rs benches/main.rs benches/soak.rs benches/quiet.rs > /dev/null \
    && touch src/lib.rs \
    && cargo build --release --locked --bin rollcall
COPY benches benches
COPY src src
# Files keep the times that they have outside, which may be before that build.
RUN touch src/lib.rs src/main.rs && cargo build --release --locked --bin rollcall

# The same Debian as above, for its C library. Roots of trust for TLS are built into the program.
FROM debian:12.12-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin rollcall
COPY --from=build /build/target/release/rollcall /usr/local/bin/rollcall
COPY LICENSE /usr/share/doc/rollcall/LICENSE
# rollcall.toml is looked for in the directory that it is started in, and may be missing.
WORKDIR /etc/rollcall
# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
EXPOSE 8080
# Whether the process lives: whoever restarts what is unhealthy must not restart Rollcall because
# its broker is away. It asks where the configuration says that Rollcall listens.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["rollcall", "health"]
ENTRYPOINT ["rollcall"]
CMD ["serve"]
