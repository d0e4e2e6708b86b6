//! Models in several GGUF files, which llama.cpp's `llama-gguf-split` writes: `model-00001-of-00003.gguf` and so on. The
//! first file contains the metadata, and each file contains some of the tensors.

use std::collections::BTreeSet;
use std::path::PathBuf;

use shardax::error::Result;

use super::{Gguf, parse};

/// The maximal number of files, because a damaged count would otherwise open many files.
const MAX_FILES: usize = 10_000;

impl Gguf {
    /// Adds the tensors of the files after the first one.
    pub(super) fn with_other_files(mut self) -> Result<Gguf> {
        let count = self.split_number("split.count").unwrap_or(1);
        if count <= 1 {
            return Ok(self);
        }
        let number = self.split_number("split.no").unwrap_or(0);
        if count > MAX_FILES || number != 0 {
            return Err(self.error(format!("it is file {} of {count}, but you must open the first file", number + 1)));
        }
        for index in 1..count {
            let part = parse::parse(&self.part_path(index, count)?)?;
            if part.split_number("split.no") != Some(index) || part.split_number("split.count") != Some(count) {
                return Err(part.error(format!(
                    "it should be file {} of {count}, but its metadata has another number",
                    index + 1
                )));
            }
            let file = self.files.len();
            self.tensors.extend(part.tensors.into_iter().map(|tensor| super::Tensor { file, ..tensor }));
            self.files.push(part.path);
        }
        self.check_tensors()?;
        Ok(self)
    }

    fn split_number(&self, key: &str) -> Option<usize> {
        self.metadata.get(key).and_then(|value| value.as_usize())
    }

    /// Returns the path of another file of the model. The names of the files differ only in the number.
    fn part_path(&self, index: usize, count: usize) -> Result<PathBuf> {
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.strip_suffix(&format!("-00001-of-{count:05}.gguf")) {
            Some(start) => Ok(self.path.with_file_name(format!("{start}-{:05}-of-{count:05}.gguf", index + 1))),
            None => Err(self.error(format!(
                "it is the first of {count} files, but its name does not end with -00001-of-{count:05}.gguf"
            ))),
        }
    }

    /// Checks that the files have as many tensors as the first file states, and that no tensor occurs twice.
    fn check_tensors(&self) -> Result<()> {
        let names: BTreeSet<&str> = self.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let count = self.split_number("split.tensors.count").unwrap_or(self.tensors.len());
        if names.len() != self.tensors.len() || count != self.tensors.len() {
            let message = format!(
                "its files have {} tensors with {} different names, but should have {count}",
                self.tensors.len(),
                names.len()
            );
            return Err(self.error(message));
        }
        Ok(())
    }
}
