//! The plugin's log: XLA writes to stderr from its first moment on, unless a variable of the environment says otherwise.
//!
//! The environment belongs to the whole process, and whoever changes it while another thread reads it, be it in C,
//! breaks that thread. So it is changed before `main`, when there is no other thread; and not at all where this crate is
//! part of a library that is loaded later.

/// Unset, it is set to 2: errors only.
#[cfg(target_os = "linux")]
extern "C" fn quiet() {
    // SAFETY: the texts end in NUL; with one thread, nobody reads the environment meanwhile.
    unsafe {
        // glibc's own note of whether there has ever been another thread.
        let alone = libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()).cast::<u8>();
        if alone.is_null() || *alone != 0 {
            libc::setenv(c"TF_CPP_MIN_LOG_LEVEL".as_ptr(), c"2".as_ptr(), 0);
        }
    }
}

#[cfg(target_os = "linux")]
#[used]
// SAFETY: the loader calls what lies there with arguments that the function does not look at.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = quiet;
