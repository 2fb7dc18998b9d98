//! A thread for each connection to a broker, which may sleep without delaying other work (see
//! `mqtt::read_coalescer`), and one for the listener (see `listener/server.rs`).

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Runs the work on its own thread until it ends; calls `idle` when the thread has nothing to do. Dropping this future
/// drops the work a moment later. Panics if the work does.
pub(super) async fn on_its_own(
    name: &str,
    idle: impl Fn() + Send + Sync + 'static,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let dropped = CancellationToken::new();
    let _guard = dropped.clone().drop_guard();
    let (ended, end) = oneshot::channel();
    let runtime = Builder::new_current_thread().enable_all().on_thread_park(idle).build();
    let runtime = runtime.expect("threads can be had at a start");
    let run = move || {
        runtime.block_on(dropped.run_until_cancelled_owned(work));
        // A name lookup that still runs blocks a thread that cannot be ended.
        runtime.shutdown_background();
        let _ = ended.send(());
    };
    std::thread::Builder::new()
        .name(format!("mqtt-{name}"))
        .spawn(run)
        .expect("threads can be had at a start");
    end.await.expect("a connection does not panic");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_work_ends_when_its_future_is_dropped() {
        let (alive, ended) = oneshot::channel::<()>();
        let (begins, begun) = oneshot::channel();
        let work = async move {
            let _alive = alive;
            begins.send(()).unwrap();
            std::future::pending().await
        };
        let waits = tokio::spawn(on_its_own("test", || (), work));
        begun.await.unwrap();
        waits.abort();
        assert!(ended.await.is_err(), "it was dropped");
    }

    #[tokio::test]
    async fn a_panic_of_the_work_is_passed_on() {
        let ended = tokio::spawn(on_its_own("test", || (), async { panic!("as it should") })).await;
        assert!(ended.unwrap_err().is_panic());
    }
}
