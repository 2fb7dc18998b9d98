//! Threads that serve only requests.
//!
//! In a storm the threads of the service have work at every moment. A request would wait behind it each time that it
//! waits for something; the operating system lets a thread that mostly sleeps run soon.

use tokio::runtime::{Builder, Handle, Runtime};

/// Two, so that an answer that takes long delays no other one.
const THREADS: usize = 2;

/// The threads and their tasks end when this value is dropped. A request may have connected to the engine again, and
/// other parts use that connection, so this is dropped last.
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
        // `shutdown_background` does not wait: a task must not block, and a lookup of a name may take long.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
