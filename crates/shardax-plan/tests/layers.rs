//! The planner's dependencies: no library depends on it.

use std::path::Path;

#[test]
fn no_library_depends_on_the_planner() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of crates");
    let mut count = 0;
    for entry in std::fs::read_dir(crates).expect("a folder") {
        let path = entry.expect("an entry").path();
        let Ok(manifest) = std::fs::read_to_string(path.join("Cargo.toml")) else { continue };
        if !path.ends_with("shardax-plan") {
            count += 1;
            assert!(!manifest.contains("shardax-plan"), "{} depends on shardax-plan", path.display());
        }
    }
    assert!(count >= 6, "only {count} crates were found");
}
