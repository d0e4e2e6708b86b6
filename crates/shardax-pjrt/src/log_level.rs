//! The default log level of the plugin: XLA writes to stderr as soon as it is loaded, unless an environment variable is
//! set.
//!
//! Changing the environment while another thread reads it, possibly in C, is undefined behaviour. Therefore it is
//! changed before `main`, when there is only one thread. If this crate is part of a library that is loaded later, it is
//! not changed at all. Test: `transfer::nothing_changes_the_environment_after_the_start`.

/// Sets the log level to 2 (errors only) if it is not set.
#[cfg(target_os = "linux")]
extern "C" fn quiet() {
    // SAFETY: the texts end in NUL, and no other thread reads the environment.
    unsafe {
        // glibc's flag that is false once a second thread has been created.
        let single_threaded = libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()).cast::<u8>();
        if single_threaded.is_null() || *single_threaded != 0 {
            libc::setenv(c"TF_CPP_MIN_LOG_LEVEL".as_ptr(), c"2".as_ptr(), 0);
        }
    }
}

#[cfg(target_os = "linux")]
#[used]
// SAFETY: the loader calls the functions in this section with arguments that `quiet` ignores.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = quiet;
