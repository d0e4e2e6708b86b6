//! The key-value store of the processes, for plugins that support several processes.

use std::time::Duration;

use shardax_mpi as mpi;
use shardax_pjrt as pjrt;

/// The processes' key-value store, with the interface that plugins use.
pub struct Store(pub mpi::World);

impl pjrt::KeyValueStore for Store {
    fn get(&self, key: &str, timeout: Duration) -> pjrt::Result<Vec<u8>> {
        self.0.store().get(key, timeout).map_err(to_pjrt_error)
    }

    fn try_get(&self, key: &str) -> pjrt::Result<Option<Vec<u8>>> {
        self.0.store().try_get(key).map_err(to_pjrt_error)
    }

    fn put(&self, key: &str, value: &[u8]) -> pjrt::Result<()> {
        self.0.store().put(key, value).map_err(to_pjrt_error)
    }
}

/// Converts the error to the codes that plugins expect.
fn to_pjrt_error(error: mpi::Error) -> pjrt::Error {
    let code = match error.kind {
        mpi::Kind::DeadlineExceeded => pjrt::Code::DeadlineExceeded,
        mpi::Kind::FailedPrecondition => pjrt::Code::AlreadyExists,
        _ => pjrt::Code::Internal,
    };
    pjrt::Error::new(code, error.to_string())
}
