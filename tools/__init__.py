"""What builds and checks the project: Java, Ivy and the jars."""
