"""What a training or a measurement leaves behind, and how it is read again."""
