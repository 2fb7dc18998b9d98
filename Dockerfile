# Rollcall alone: one program without a state. Its configuration is /etc/rollcall/rollcall.toml, or
# ROLLCALL_… variables.

FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /build
# The image has the toolchain: with rust-toolchain.toml it would fetch formatter and lints as well.
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
# The dependencies are built first, without any source of Rollcall: this layer stays until one of the two
# files changes. Cargo needs to see the benchmarks, though it does not build them.
RUN mkdir -p src benches \
    && echo 'fn main() {}' | tee src/main.rs benches/main.rs benches/soak.rs benches/quiet.rs > /dev/null \
    && touch src/lib.rs \
    && cargo build --profile dist --locked --bin rollcall
COPY benches benches
COPY src src
# Copied files keep their times, which may be before that build.
RUN touch src/lib.rs src/main.rs && cargo build --profile dist --locked --bin rollcall

# The same Debian as above, for its C library. Roots of trust for TLS are built into the program.
FROM debian:12.12-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin rollcall
COPY --from=build /build/target/dist/rollcall /usr/local/bin/rollcall
COPY LICENSE /usr/share/doc/rollcall/LICENSE
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
