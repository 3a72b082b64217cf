"""What is measured with the library, and the records that measurements leave."""
