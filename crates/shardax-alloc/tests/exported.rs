//! The executable exports the C functions that plugins allocate with, so that libraries loaded later find them.

use shardax_alloc as _;

#[cfg(target_os = "linux")]
#[test]
fn the_executable_exports_the_c_functions() {
    let executable = std::env::current_exe().expect("the test's own path");
    let Ok(out) = std::process::Command::new("nm").args(["-D", "--defined-only"]).arg(executable).output() else {
        return; // binutils are not installed
    };
    let symbols = String::from_utf8_lossy(&out.stdout);
    for name in ["malloc", "calloc", "realloc", "free", "aligned_alloc", "posix_memalign", "memalign"] {
        assert!(
            symbols.lines().any(|line| line.ends_with(&format!(" T {name}"))),
            "{name} is not exported:\n{symbols}"
        );
    }
}
