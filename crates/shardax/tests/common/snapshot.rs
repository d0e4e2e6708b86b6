//! Texts compared with the committed ones in tests/snapshots.

/// Compares `text` with the file of this name. With SHARDAX_TEST_UPDATE_SNAPSHOTS set, writes it instead.
pub fn snapshot(name: &str, text: &str) {
    let path = format!("{}/tests/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = format!("{}\n", text.trim_end());
    if std::env::var_os("SHARDAX_TEST_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).expect("the snapshot can be written");
        return;
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "{path} differs; it would be\n{text}\n(SHARDAX_TEST_UPDATE_SNAPSHOTS=1 writes it)");
}
