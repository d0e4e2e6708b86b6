//! shardax-pjrt
