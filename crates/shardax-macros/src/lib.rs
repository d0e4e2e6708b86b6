//! shardax-macros
