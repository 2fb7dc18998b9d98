//! Threads that serve only requests.
//!
//! In a storm the threads of the service always have work, and a request would queue behind it at every await. The
//! operating system soon runs a thread that mostly sleeps.

use tokio::runtime::{Builder, Handle, Runtime};

/// Two, so that one slow answer does not delay every other one.
const THREADS: usize = 2;

/// Dropping this value ends the threads and their tasks. Drop it last: a request may have opened the connection to the
/// engine that other parts use.
pub struct RequestThreads(Option<Runtime>);

impl RequestThreads {
    /// # Errors
    /// The operating system starts no more threads.
    pub fn start() -> std::io::Result<RequestThreads> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("requests")
            .enable_all()
            .build()?;
        Ok(RequestThreads(Some(runtime)))
    }

    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is there until the drop").handle()
    }
}

impl Drop for RequestThreads {
    fn drop(&mut self) {
        // `shutdown_background` does not wait: a name lookup may take long, and a task must not block.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
