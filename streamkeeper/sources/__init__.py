"""What a source holds, where a start lies in it, and what moving there costs.

One package a format: files, Kafka, Delta."""
