"""Building blocks of proxy losses: trainable proxies, class similarities, class memory, and sharding over processes."""
