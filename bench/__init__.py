"""What the service costs, against a bare proxy of the same model server in the same run."""
