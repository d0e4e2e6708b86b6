//! Functions of the host that compiled programs call (XLA FFI).
