//! shardax
