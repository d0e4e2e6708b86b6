//! Tokenizers: texts to numbers, and back.

use shardax::error::{Error, ErrorKind, Result};

use super::{Example, HostArray};

/// A tokenizer: of bytes, or, with the cargo feature `tokenizers`, of a Hugging Face `tokenizer.json`, such as byte
/// pair encoding.
///
/// ```
/// use shardax_train::data::Tokenizer;
/// let bytes = Tokenizer::bytes();
/// let tokens = bytes.encode("wörd")?;
/// assert_eq!((tokens.len(), bytes.vocab_size()), (5, 256));
/// assert_eq!(bytes.decode(&tokens)?, "wörd");
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokenizer(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Bytes,
    #[cfg(feature = "tokenizers")]
    File(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// Creates a tokenizer whose tokens are bytes.
    pub fn bytes() -> Self {
        Tokenizer(Kind::Bytes)
    }

    /// True if each byte is a token.
    pub fn is_bytes(&self) -> bool {
        matches!(self.0, Kind::Bytes)
    }

    /// Returns the number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        match &self.0 {
            Kind::Bytes => 256,
            #[cfg(feature = "tokenizers")]
            Kind::File(tokenizer) => tokenizer.get_vocab_size(true),
        }
    }

    /// Encodes a text.
    ///
    /// # Errors
    /// Returns an error if the tokenizer has no token for some part of it.
    #[track_caller]
    pub fn encode(&self, text: &str) -> Result<Vec<i32>> {
        match &self.0 {
            Kind::Bytes => Ok(text.bytes().map(i32::from).collect()),
            #[cfg(feature = "tokenizers")]
            Kind::File(tokenizer) => {
                let location = std::panic::Location::caller();
                let encoded = tokenizer.encode(text, false).map_err(|error| {
                    Error::new(ErrorKind::Value, format!("a text has no tokens: {error}")).at(location)
                })?;
                Ok(encoded.get_ids().iter().map(|id| *id as i32).collect())
            }
        }
    }

    /// Decodes tokens. Invalid UTF-8 becomes `�`.
    ///
    /// # Errors
    /// Returns an error for a number that is not a token.
    #[track_caller]
    pub fn decode(&self, tokens: &[i32]) -> Result<String> {
        let location = std::panic::Location::caller();
        let size = self.vocab_size();
        if let Some(token) = tokens.iter().find(|token| usize::try_from(**token).map_or(true, |token| token >= size)) {
            let message = format!("{token} is not a token: the vocabulary has {size}");
            return Err(Error::new(ErrorKind::Value, message)
                .help("use an index below that number; the first is 0")
                .at(location));
        }
        match &self.0 {
            Kind::Bytes => {
                let bytes: Vec<u8> = tokens.iter().map(|token| *token as u8).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            #[cfg(feature = "tokenizers")]
            Kind::File(tokenizer) => {
                let ids: Vec<u32> = tokens.iter().map(|token| *token as u32).collect();
                tokenizer
                    .decode(&ids, false)
                    .map_err(|error| Error::new(ErrorKind::Value, format!("tokens are no text: {error}")).at(location))
            }
        }
    }

    /// Encodes a text as an example with `tokens`, int32 `[length]`, for [`pack`](super::Stream::pack).
    ///
    /// # Errors
    /// Returns an error if the tokenizer cannot encode the text.
    #[track_caller]
    pub fn example(&self, text: &str) -> Result<Example> {
        let tokens = self.encode(text)?;
        Ok(Example::from([("tokens".to_owned(), HostArray::from_slice(&tokens, &[tokens.len()])?)]))
    }
}

#[cfg(feature = "tokenizers")]
pub use bpe::BpeOptions;

#[cfg(feature = "tokenizers")]
mod bpe {
    use std::path::{Path, PathBuf};

    use tokenizers::models::bpe::{BPE, BpeTrainer};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{AddedToken, TokenizerBuilder};

    use super::*;

    /// Options to train byte pair encoding.
    #[derive(Clone, Debug)]
    pub struct BpeOptions {
        vocab_size: usize,
        special_tokens: Vec<String>,
    }

    impl BpeOptions {
        /// Creates options for a vocabulary of this size. The first 256 tokens are the bytes.
        pub fn new(vocab_size: usize) -> Self {
            BpeOptions { vocab_size, special_tokens: Vec::new() }
        }

        /// Adds a token that no text contains, such as `<|endoftext|>`, with which you can mark the end of a text.
        pub fn special_token(mut self, token: &str) -> Self {
            self.special_tokens.push(token.to_owned());
            self
        }
    }

    impl Tokenizer {
        /// Loads a `tokenizer.json`.
        ///
        /// # Errors
        /// Returns an error, with the file and the place, if it is not such a file.
        #[track_caller]
        pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
            let (path, location) = (path.as_ref(), std::panic::Location::caller());
            let text = super::super::file::read(path)
                .map_err(|error| super::super::file::unreadable(path, &error).at(location))?;
            let tokenizer = tokenizers::Tokenizer::from_bytes(&text).map_err(|error| {
                let message = format!("{} is not a tokenizer.json: {error}", path.display());
                Error::new(ErrorKind::Value, message)
                    .help("pass a file that the library `tokenizers` wrote")
                    .at(location)
            })?;
            Ok(Tokenizer(Kind::File(Box::new(tokenizer))))
        }

        /// Trains byte pair encoding on text files. It encodes any text, and decoding restores the text.
        ///
        /// Source: [Sennrich et al. 2015](https://arxiv.org/abs/1508.07909), over bytes as in [Radford et al.
        /// 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf).
        ///
        /// # Errors
        /// Returns an error for a vocabulary smaller than the bytes and special tokens, and for a file that cannot be
        /// read or is not text.
        #[track_caller]
        pub fn train_bpe<P: AsRef<Path>>(files: impl IntoIterator<Item = P>, options: &BpeOptions) -> Result<Self> {
            let location = std::panic::Location::caller();
            let files: Vec<PathBuf> = files.into_iter().map(|file| file.as_ref().to_owned()).collect();
            train(&files, options).map_err(|error| error.at(location))
        }

        /// Writes a `tokenizer.json`.
        ///
        /// # Errors
        /// Returns an error for a tokenizer of bytes, which needs none, and if the file cannot be written.
        #[track_caller]
        pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
            let path = path.as_ref();
            let location = std::panic::Location::caller();
            let saved = match &self.0 {
                Kind::Bytes => Err("bytes need no tokenizer.json".to_owned()),
                Kind::File(tokenizer) => tokenizer.save(path, false).map_err(|error| error.to_string()),
            };
            saved.map_err(|error| {
                Error::new(ErrorKind::Runtime, format!("cannot write {}: {error}", path.display()))
                    .help("check that the path is correct and that this user may use it")
                    .at(location)
            })
        }
    }

    fn not_learned(error: tokenizers::Error) -> Error {
        Error::new(ErrorKind::Runtime, format!("byte pair encoding could not be learned: {error}"))
    }

    fn train(files: &[PathBuf], options: &BpeOptions) -> Result<Tokenizer> {
        let least = 256 + options.special_tokens.len();
        if options.vocab_size < least {
            let message =
                format!("a vocabulary of {} tokens is too small: it needs at least {least}", options.vocab_size);
            return Err(Error::new(ErrorKind::Value, message)
                .help("256 tokens are the bytes, and each special token needs one more"));
        }
        let texts = files.iter().map(|path| super::super::file::text(path));
        let texts: Vec<String> = texts.collect::<Result<_>>()?;
        let mut trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(options.vocab_size)
            .special_tokens(options.special_tokens.iter().map(|token| AddedToken::from(token.as_str(), true)).collect())
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let bytes = ByteLevel::default().add_prefix_space(false);
        let built = TokenizerBuilder::<BPE, tokenizers::NormalizerWrapper, ByteLevel, ByteLevel, ByteLevel>::new()
            .with_model(BPE::default())
            .with_normalizer(None)
            .with_pre_tokenizer(Some(bytes))
            .with_post_processor(None)
            .with_decoder(Some(bytes))
            .build();
        let mut tokenizer = built.map_err(not_learned)?;
        tokenizer.train(&mut trainer, texts.iter().map(String::as_str)).map_err(not_learned)?;
        // The general type, which files deserialize to as well.
        let text = tokenizer.to_string(false).map_err(not_learned)?;
        let tokenizer = tokenizers::Tokenizer::from_bytes(text).map_err(not_learned)?;
        Ok(Tokenizer(Kind::File(Box::new(tokenizer))))
    }
}
