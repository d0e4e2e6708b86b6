//! Values by key that the processes of a job share.

use std::time::Duration;

use crate::error::Result;

/// Values by key that the processes of a job share, by MPI's messages or in a [folder](crate::Folder). You can
/// implement it with a client of a store such as etcd or Redis. [`Store`](crate::Store) adds waiting and barriers.
pub trait KeyValue: Send + Sync {
    /// Sets a value, and replaces an earlier one. The processes in `readers` must be able to read it; others may.
    ///
    /// # Errors
    /// Returns an error of the store.
    fn set(&self, key: &str, value: &[u8], readers: &[usize]) -> Result<()>;

    /// Sets a value unless the key has one. Returns false if it has.
    ///
    /// # Errors
    /// Returns an error of the store.
    fn set_new(&self, key: &str, value: &[u8], readers: &[usize]) -> Result<bool>;

    /// The value of a key; `None` if it has none.
    ///
    /// # Errors
    /// Returns an error of the store.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Removes the value of a key, if it has one.
    ///
    /// # Errors
    /// Returns an error of the store.
    fn remove(&self, key: &str) -> Result<()>;

    /// Removes the values of all keys with this prefix. A store that cannot list its keys may keep them.
    ///
    /// # Errors
    /// Returns an error of the store.
    fn remove_all(&self, _prefix: &str) -> Result<()> {
        Ok(())
    }

    /// Returns true if all processes read the same values, and false if each has copies.
    fn is_shared(&self) -> bool {
        true
    }

    /// The time between two looks of a process that waits for a value. Long waits look less often.
    fn interval(&self) -> Duration {
        Duration::from_millis(5)
    }
}
