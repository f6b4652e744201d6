# What this project uses of redis, whose own types are partly unknown.
